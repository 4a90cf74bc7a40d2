// kfake runs franz-go's fake cluster for tests/brokers/fake.py. Every request that arrives is decoded
// by kmsg and encoded again; the bytes must be the same. Commands arrive as lines of JSON on standard
// input, and each is answered with a line. It ends with standard input.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// request is what the tests see of a request.
type request struct {
	Name    string
	Version int16
	Client  string
	Wrong   string // why kmsg does not accept it
}

// journal collects the requests of all connections.
type journal struct {
	sync.Mutex
	requests []request
}

type listener struct {
	net.Listener
	journal *journal
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &conn{Conn: c, journal: l.journal}, err
}

// conn records the requests that the cluster reads from a connection.
type conn struct {
	net.Conn
	journal *journal
	unread  []byte
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.unread = append(c.unread, p[:n]...)
	for len(c.unread) >= 4 {
		end := 4 + int(binary.BigEndian.Uint32(c.unread))
		if len(c.unread) < end {
			break
		}
		seen := decode(c.unread[4:end])
		c.journal.Lock()
		c.journal.requests = append(c.journal.requests, seen)
		c.journal.Unlock()
		c.unread = c.unread[end:]
	}
	return n, err
}

func decode(frame []byte) request {
	key := int16(binary.BigEndian.Uint16(frame))
	r := request{Name: kmsg.NameForKey(key), Version: int16(binary.BigEndian.Uint16(frame[2:]))}
	// Version, correlation id, and a client id that may be null (length -1).
	body := frame[10:]
	if n := int16(binary.BigEndian.Uint16(frame[8:])); n > 0 {
		r.Client, body = string(body[:n]), body[n:]
	}
	known := kmsg.RequestForKey(key)
	if known == nil || r.Version > known.MaxVersion() {
		r.Wrong = "unknown to kmsg"
		return r
	}
	known.SetVersion(r.Version)
	if known.IsFlexible() {
		body = body[1:] // no tagged fields in the header
	}
	if err := known.ReadFrom(body); err != nil {
		r.Wrong = err.Error()
	} else if !bytes.Equal(known.AppendTo(nil), body) {
		r.Wrong = "encoded again it differs"
	}
	return r
}

type command struct {
	Op    string
	Topic string
	Code  int16
}

func execute(cluster *kfake.Cluster, journal *journal, c command) any {
	switch c.Op {
	case "requests": // those that have arrived since the last time
		journal.Lock()
		defer journal.Unlock()
		found := append([]request{}, journal.requests...)
		journal.requests = nil
		return found
	case "fail": // the next Produce request for a topic, with an error code
		var wanted *kerr.Error
		errors.As(kerr.ErrorForCode(c.Code), &wanted)
		keys := []kmsg.Key{kmsg.Produce}
		cluster.Fault(kfake.Fault{Keys: keys, Topic: c.Topic, Err: wanted, Count: 1})
	case "close-on-api-versions-4": // as Azure Event Hubs does
		cluster.ControlKey(18, func(r kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			if r.GetVersion() >= 4 {
				return nil, errors.New("closed"), true
			}
			return nil, nil, false
		})
	case "answer-acks-0": // as Azure Event Hubs does
		cluster.ControlKey(0, func(r kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			if produce := r.(*kmsg.ProduceRequest); produce.Acks == 0 {
				produce.Acks = 1
			}
			return nil, nil, false
		})
	default:
		return "unknown command " + c.Op
	}
	return "done"
}

func main() {
	release := flag.String("release", "", "offer the request versions of this Kafka, as v3.9")
	produce := flag.Int("produce", -1, "offer Produce up to this version")
	maxBytes := flag.Int("message-max-bytes", 1048588, "the largest batch")
	flag.Parse()
	versions := kversion.Stable()
	if *release != "" {
		versions = kversion.FromString(*release)
	}
	if versions == nil {
		panic("no such release")
	}
	if *produce >= 0 {
		versions.SetMaxKeyVersion(0, int16(*produce))
	}
	seen := &journal{}
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1),
		kfake.AllowAutoTopicCreation(),
		kfake.DefaultNumPartitions(1),
		kfake.MaxVersions(versions),
		kfake.BrokerConfigs(map[string]string{"message.max.bytes": strconv.Itoa(*maxBytes)}),
		kfake.ListenFn(func(network, address string) (net.Listener, error) {
			l, err := net.Listen(network, address)
			return listener{l, seen}, err
		}),
	)
	if err != nil {
		panic(err)
	}
	defer cluster.Close()
	fmt.Println(cluster.ListenAddrs()[0])
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			panic(err)
		}
		answer, err := json.Marshal(execute(cluster, seen, c))
		if err != nil {
			panic(err)
		}
		fmt.Println(string(answer))
	}
}
