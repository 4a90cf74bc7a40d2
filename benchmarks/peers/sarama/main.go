// Sarama, run by the benchmarks: an AsyncProducer whose Successes and Errors are read.
package main

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/IBM/sarama"

	"peers/harness"
)

type client struct {
	producer sarama.AsyncProducer
	// Who is told of an outcome; changed between two loads only, when none is on its way.
	done atomic.Pointer[func(error)]
	sent int64
	// Outcomes so far, and where Flush waits for them: a token for each look that is worth it.
	told   atomic.Int64
	wanted atomic.Int64
	enough chan struct{}
}

func main() {
	harness.Main(func(settings harness.Settings) (harness.Client, error) {
		config, err := config(settings)
		if err != nil {
			return nil, err
		}
		producer, err := sarama.NewAsyncProducer(
			strings.Split(settings.BootstrapServers, ","), config)
		if err != nil {
			return nil, err
		}
		c := &client{producer: producer, enough: make(chan struct{}, 1)}
		c.wanted.Store(-1)
		go c.readSuccesses()
		go c.readErrors()
		return c, nil
	})
}

func config(s harness.Settings) (*sarama.Config, error) {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Producer.Return.Errors = true
	if s.Acks != nil {
		acks, known := map[string]sarama.RequiredAcks{
			"0": sarama.NoResponse, "1": sarama.WaitForLocal, "all": sarama.WaitForAll,
		}[*s.Acks]
		if !known {
			return nil, fmt.Errorf("acks %q", *s.Acks)
		}
		config.Producer.RequiredAcks = acks
	}
	if s.InFlight != nil {
		config.Net.MaxOpenRequests = *s.InFlight
	}
	if s.Idempotence != nil && *s.Idempotence {
		config.Producer.Idempotent = true
		// It allows no more.
		config.Net.MaxOpenRequests = 1
	}
	if s.LingerMs != nil {
		config.Producer.Flush.Frequency = s.Linger()
	}
	if s.BatchSize != nil {
		// The first is when a request goes out, the second the most that a batch may have.
		config.Producer.Flush.Bytes = *s.BatchSize
		config.Producer.MaxMessageBytes = *s.BatchSize
	}
	if s.Compression != nil {
		if err := config.Producer.Compression.UnmarshalText([]byte(*s.Compression)); err != nil {
			return nil, err
		}
	}
	if s.CompressionLevel != nil {
		config.Producer.CompressionLevel = *s.CompressionLevel
	}
	return config, nil
}

func (c *client) SendAll(load harness.Load, done func(error)) {
	if done == nil {
		done = func(error) {}
	}
	c.done.Store(&done)
	input := c.producer.Input()
	load.Rows(func(topic string, key, value []byte) {
		message := &sarama.ProducerMessage{Topic: topic, Value: sarama.ByteEncoder(value)}
		// No Encoder at all, not one of nil bytes: that would be an empty key.
		if key != nil {
			message.Key = sarama.ByteEncoder(key)
		}
		input <- message
	})
	c.sent += int64(load.Count)
}

func (c *client) readSuccesses() {
	for range c.producer.Successes() {
		(*c.done.Load())(nil)
		c.count()
	}
}

func (c *client) readErrors() {
	for failure := range c.producer.Errors() {
		(*c.done.Load())(failure.Err)
		c.count()
	}
}

// count says that one more message has its outcome. Flush misses none:
//
//  1. It stores what it waits for and then looks at told.
//  2. Whoever raises told to that number later sees it in wanted and leaves a token.
func (c *client) count() {
	if c.told.Add(1) == c.wanted.Load() {
		select {
		case c.enough <- struct{}{}:
		default:
		}
	}
}

// Flush waits until every message has its outcome: Sarama has no such call.
func (c *client) Flush() error {
	c.wanted.Store(c.sent)
	for c.told.Load() < c.sent {
		<-c.enough
	}
	return nil
}
