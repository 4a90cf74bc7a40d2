// franz-go, run by the benchmarks: Produce with a promise for each message.
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"peers/harness"
)

// The bound in bytes shall govern.
const maxRecords = 10_000_000

type client struct{ kafka *kgo.Client }

func main() {
	harness.Main(func(settings harness.Settings) (harness.Client, error) {
		options, err := options(settings)
		if err != nil {
			return nil, err
		}
		kafka, err := kgo.NewClient(options...)
		return client{kafka}, err
	})
}

func options(s harness.Settings) ([]kgo.Opt, error) {
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(s.BootstrapServers, ",")...)}
	add := func(option kgo.Opt) { options = append(options, option) }
	if s.Acks != nil {
		acks, known := map[string]kgo.Acks{
			"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks(),
		}[*s.Acks]
		if !known {
			return nil, fmt.Errorf("acks %q", *s.Acks)
		}
		add(kgo.RequiredAcks(acks))
	}
	// It is idempotent by default, and with acks=all only.
	if s.Acks != nil && *s.Acks != "all" || s.Idempotence != nil && !*s.Idempotence {
		add(kgo.DisableIdempotentWrite())
		if s.InFlight != nil {
			add(kgo.MaxProduceRequestsInflightPerBroker(*s.InFlight))
		}
	}
	if s.Compression != nil {
		codec, err := codec(*s.Compression, s.CompressionLevel)
		if err != nil {
			return nil, err
		}
		add(kgo.ProducerBatchCompression(codec))
	}
	if s.LingerMs != nil {
		add(kgo.ProducerLinger(s.Linger()))
	}
	if s.BatchSize != nil {
		add(kgo.ProducerBatchMaxBytes(int32(*s.BatchSize)))
	}
	if s.BufferMemory != nil {
		add(kgo.MaxBufferedBytes(int(*s.BufferMemory)))
		add(kgo.MaxBufferedRecords(maxRecords))
	}
	if s.TransactionalID != nil {
		add(kgo.TransactionalID(*s.TransactionalID))
	}
	return options, nil
}

func codec(name string, level *int) (kgo.CompressionCodec, error) {
	codec, known := map[string]kgo.CompressionCodec{
		"none":   kgo.NoCompression(),
		"gzip":   kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(),
		"lz4":    kgo.Lz4Compression(),
		"zstd":   kgo.ZstdCompression(),
	}[name]
	if !known {
		return codec, errors.New("compression " + name)
	}
	if level != nil {
		codec = codec.WithLevel(*level)
	}
	return codec, nil
}

func (c client) SendAll(load harness.Load, done func(error)) {
	ctx := context.Background()
	var promise func(*kgo.Record, error)
	if done != nil {
		promise = func(_ *kgo.Record, err error) { done(err) }
	}
	load.Rows(func(topic string, key, value []byte) {
		c.kafka.Produce(ctx, &kgo.Record{Topic: topic, Key: key, Value: value}, promise)
	})
}

func (c client) SendOne(topic string, value []byte) error {
	record := &kgo.Record{Topic: topic, Value: value}
	return c.kafka.ProduceSync(context.Background(), record).FirstErr()
}

func (c client) Begin() error { return c.kafka.BeginTransaction() }

func (c client) Commit() error {
	if err := c.Flush(); err != nil {
		return err
	}
	return c.kafka.EndTransaction(context.Background(), kgo.TryCommit)
}

func (c client) Flush() error { return c.kafka.Flush(context.Background()) }
