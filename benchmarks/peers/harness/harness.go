// Package harness measures a client written in Go as the Python ones are measured.
//
// It answers as benchmarks/child.py says, with one line of JSON on standard output:
// {"measures": ...} or {"failed": "why"}. The job is in a file, whose name is the last argument.
package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"time"
)

// Settings are what the clients are told; nil leaves a setting at the client's own default.
type Settings struct {
	BootstrapServers string   `json:"bootstrap_servers"`
	Acks             *string  `json:"acks"`
	Idempotence      *bool    `json:"idempotence"`
	Compression      *string  `json:"compression"`
	CompressionLevel *int     `json:"compression_level"`
	LingerMs         *float64 `json:"linger_ms"`
	BatchSize        *int     `json:"batch_size"`
	BufferMemory     *int64   `json:"buffer_memory"`
	InFlight         *int     `json:"in_flight"`
	TransactionalID  *string  `json:"transactional_id"`
}

// Linger is LingerMs as a duration.
func (s Settings) Linger() time.Duration {
	return time.Duration(*s.LingerMs * float64(time.Millisecond))
}

type job struct {
	Settings Settings `json:"settings"`
	Topics   []string `json:"topics"`
	Messages int      `json:"messages"`
	WarmUp   int      `json:"warm_up"`
	Size     int      `json:"size"`
	Keyed    bool     `json:"keyed"`
	Outcome  string   `json:"outcome"`
	// Transactions: how long to run them, before the clock starts and after, and whether each
	// message has a callback.
	WarmUpSeconds float64 `json:"warm_up_seconds"`
	Seconds       float64 `json:"seconds"`
	Callback      bool    `json:"callback"`
	// A file of all values, one behind the other.
	Values string   `json:"values"`
	Keys   []string `json:"keys"`
}

// Load is what to send: topics, values and keys are taken in turn.
type Load struct {
	Topics []string
	Count  int
	Values [][]byte
	// Empty: no message has a key.
	Keys [][]byte
}

// Rows calls send for each message, in order.
func (l Load) Rows(send func(topic string, key, value []byte)) {
	topic, key, value := 0, 0, 0
	for range l.Count {
		var k []byte
		if len(l.Keys) > 0 {
			k = l.Keys[key]
			if key++; key == len(l.Keys) {
				key = 0
			}
		}
		send(l.Topics[topic], k, l.Values[value])
		if value++; value == len(l.Values) {
			value = 0
		}
		if topic++; topic == len(l.Topics) {
			topic = 0
		}
	}
}

// Client is what is measured.
type Client interface {
	// SendAll is the send loop. Each message's outcome goes to done; nil: nobody asks.
	SendAll(load Load, done func(error))
	// Flush returns when every message has its outcome.
	Flush() error
}

// Waiter is a client that can wait for each message.
type Waiter interface {
	// SendOne sends one message and waits for its outcome.
	SendOne(topic string, value []byte) error
}

// Main makes a client, measures it as the command line says, and ends the process.
func Main(make func(Settings) (Client, error)) {
	go endWithParent()
	measures, err := run(make)
	answer := map[string]any{"measures": measures}
	if err != nil {
		answer = map[string]any{"failed": err.Error()}
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// endWithParent ends the process when its standard input is closed: whoever started it is gone.
func endWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(3)
}

func run(make func(Settings) (Client, error)) (map[string]any, error) {
	job, err := readJob(os.Args[len(os.Args)-1])
	if err != nil {
		return nil, fmt.Errorf("the job: %w", err)
	}
	values, err := readValues(job.Values, job.Size)
	if err != nil {
		return nil, err
	}
	client, err := make(job.Settings)
	if err != nil {
		return nil, err
	}
	if job.Outcome == "waited" {
		return oneByOne(client, Load{Topics: job.Topics, Count: job.Messages, Values: values}, job.WarmUp)
	}
	keys := asBytes(job.Keys)
	if job.Outcome == "transactions" {
		load := Load{Topics: job.Topics, Count: job.Messages, Values: values}
		if job.Keyed {
			load.Keys = keys
		}
		return inTransactions(client, load, job)
	}
	if err := warmUp(client, Load{job.Topics, job.WarmUp, values, keys}); err != nil {
		return nil, err
	}
	load := Load{Topics: job.Topics, Count: job.Messages, Values: values}
	if job.Keyed {
		load.Keys = keys
	}
	return measure(client, load, job.Outcome == "none")
}

// warmUp connects and reaches every partition (by keys); all of it is delivered when it returns.
func warmUp(client Client, load Load) error {
	var tally Tally
	client.SendAll(load, tally.Done)
	if err := client.Flush(); err != nil {
		return err
	}
	if err := tally.Complaint(load.Count); err != nil {
		return fmt.Errorf("warm-up: %w", err)
	}
	return nil
}

func measure(client Client, load Load, silent bool) (map[string]any, error) {
	var tally Tally
	done := tally.Done
	if silent {
		done = nil
	}
	start := now()
	client.SendAll(load, done)
	looped, inLoop := now(), tally.delivered.Load()
	if err := client.Flush(); err != nil {
		return nil, err
	}
	used := now().since(start)
	count := float64(load.Count)
	measures := map[string]any{
		"messages_per_s": count / used.wall,
		"cpu_us":         used.cpu / count * 1e6,
		"loop_ns":        looped.since(start).wall / count * 1e9,
		"peak_rss":       statusBytes("VmHWM:"),
		"rss":            statusBytes("VmRSS:"),
		"threads":        threads(),
		"sleeps":         used.sleeps,
	}
	if silent {
		return measures, nil
	}
	measures["overlap"] = float64(inLoop) / count
	return measures, tally.Complaint(load.Count)
}

// oneByOne waits for each message before it sends the next.
func oneByOne(client Client, load Load, warmUp int) (map[string]any, error) {
	waiter, able := client.(Waiter)
	if !able {
		return nil, errors.New("the client cannot wait for one message")
	}
	times := make([]float64, 0, load.Count)
	var failed error
	send := func(topic string, _, value []byte) {
		start := time.Now()
		if err := waiter.SendOne(topic, value); err != nil && failed == nil {
			failed = err
		}
		times = append(times, float64(time.Since(start).Nanoseconds())/1000)
	}
	Load{Topics: load.Topics, Count: warmUp, Values: load.Values}.Rows(send)
	times = times[:0]
	start := now()
	load.Rows(send)
	used := now().since(start)
	if failed != nil {
		return nil, failed
	}
	sort.Float64s(times)
	count := float64(load.Count)
	return map[string]any{
		"p50_us":  times[len(times)/2],
		"p99_us":  times[len(times)*99/100],
		"mean_us": used.wall / count * 1e6,
		"most_us": times[len(times)-1],
		"cpu_us":  used.cpu / count * 1e6,
		"sleeps":  float64(used.sleeps) / count,
	}, nil
}

func readJob(path string) (job job, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return job, err
	}
	return job, json.Unmarshal(text, &job)
}

func readValues(path string, size int) ([][]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	values := make([][]byte, 0, len(data)/size)
	for ; len(data) >= size; data = data[size:] {
		values = append(values, data[:size:size])
	}
	return values, nil
}

func asBytes(texts []string) [][]byte {
	found := make([][]byte, len(texts))
	for i, text := range texts {
		found[i] = []byte(text)
	}
	return found
}
