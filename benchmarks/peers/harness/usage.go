package harness

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Tally counts outcomes.
type Tally struct {
	delivered, failed atomic.Int64
	once              sync.Once
	first             error
}

// Done takes the outcome of one message.
func (t *Tally) Done(err error) {
	if err == nil {
		t.delivered.Add(1)
		return
	}
	t.once.Do(func() { t.first = err })
	t.failed.Add(1)
}

// Complaint says what is wrong if not every one of the expected messages was delivered.
func (t *Tally) Complaint(expected int) error {
	delivered, failed := int(t.delivered.Load()), int(t.failed.Load())
	if delivered == expected && failed == 0 {
		return nil
	}
	text := fmt.Sprintf("of %d messages %d failed and %d have no outcome", expected, failed,
		expected-delivered-failed)
	if failed > 0 {
		text += fmt.Sprintf("; first error: %v", t.first)
	}
	return errors.New(text)
}

// usage is a moment, or (as a difference) a stretch of time and what all threads used in it.
type usage struct {
	at time.Time
	// Seconds on the wall, and of processor time, user and system.
	wall, cpu float64
	// How often a thread went to sleep by itself.
	sleeps int64
}

func now() usage {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	cpu := time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
	return usage{at: time.Now(), cpu: cpu, sleeps: int64(used.Nvcsw)}
}

func (u usage) since(earlier usage) usage {
	return usage{
		wall:   u.at.Sub(earlier.at).Seconds(),
		cpu:    u.cpu - earlier.cpu,
		sleeps: u.sleeps - earlier.sleeps,
	}
}

// statusBytes is a field of /proc/self/status, nil where there is none.
func statusBytes(field string) any {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == field {
			if kib, err := strconv.ParseInt(words[1], 10, 64); err == nil {
				return kib * 1024
			}
		}
	}
	return nil
}

// threads is how many threads this process has, nil where nobody tells.
func threads() any {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil
	}
	return len(tasks)
}
