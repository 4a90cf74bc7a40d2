package harness

import (
	"errors"
	"sort"
	"time"
)

// Transactor is a client with transactions.
type Transactor interface {
	Begin() error
	// Commit commits what was sent since Begin.
	Commit() error
}

// inTransactions runs whole transactions, one after the other.
func inTransactions(client Client, load Load, job job) (map[string]any, error) {
	transactor, able := client.(Transactor)
	if !able {
		return nil, errors.New("the client has no transactions")
	}
	var tally Tally
	var done func(error)
	if job.Callback {
		done = tally.Done
	}
	before, err := transact(client, transactor, load, done, job.WarmUpSeconds)
	if err != nil {
		return nil, err
	}
	start := now()
	times, err := transact(client, transactor, load, done, job.Seconds)
	used := now().since(start)
	if err != nil {
		return nil, err
	}
	count, sent := len(times), (len(before)+len(times))*load.Count
	if job.Callback {
		if err := tally.Complaint(sent); err != nil {
			return nil, err
		}
	}
	sort.Float64s(times)
	return map[string]any{
		"transactions_per_s": float64(count) / used.wall,
		"messages_per_s":     float64(count*load.Count) / used.wall,
		"p50_ms":             times[count/2] * 1e3,
		"p99_ms":             times[count*99/100] * 1e3,
		"cpu_us":             used.cpu / float64(count) * 1e6,
		"sleeps":             float64(used.sleeps) / float64(count),
		"transactions":       count,
		"sent":               sent,
	}, nil
}

// transact runs transactions for some seconds, at least one, and returns the seconds of each.
func transact(
	client Client, transactor Transactor, load Load, done func(error), seconds float64,
) ([]float64, error) {
	var times []float64
	start := time.Now()
	until := start.Add(time.Duration(seconds * float64(time.Second)))
	for start.Before(until) || len(times) == 0 {
		if err := transactor.Begin(); err != nil {
			return nil, err
		}
		client.SendAll(load, done)
		if err := transactor.Commit(); err != nil {
			return nil, err
		}
		end := time.Now()
		times = append(times, end.Sub(start).Seconds())
		start = end
	}
	return times, nil
}
