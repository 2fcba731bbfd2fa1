package delivery

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/bench/servers"
	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// bench is what a part has to itself: a Redis, and a gateway.
type bench struct {
	plan
	*servers.Bed
	push    *pushfx.Push // which hands over, and sends nothing
	gateway *gateway
	table   *table
}

// parts are what is measured, in turn, each on a Redis of its own.
var parts = []struct {
	name string
	run  func(*bench, context.Context) error
}{
	{"cpu", (*bench).measureCPU},
	{"fanout", (*bench).measureFanOut},
	{"decide", (*bench).measureDecide},
	{"idle", (*bench).measureIdle},
	{"outage", (*bench).measureOutage},
	{"kill", (*bench).measureKill},
	{"trouble", (*bench).measureTrouble},
	{"known", (*bench).measureKnown},
}

func partNames() (names []string) {
	for _, part := range parts {
		names = append(names, part.name)
	}
	return names
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// measure measures all and prints the table.
func measure(ctx context.Context, p plan, out io.Writer) error {
	began, t := time.Now(), &table{}
	for _, part := range parts {
		if p.parts != "" && !slices.Contains(strings.Split(p.parts, ","), part.name) {
			continue
		}
		progress("%v %s", time.Since(began).Round(time.Second), part.name)
		if err := measurePart(ctx, p, t, part.run); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	progress("%v done", time.Since(began).Round(time.Second))
	_, err := io.WriteString(out, t.markdown(p))
	return err
}

func measurePart(ctx context.Context, p plan, t *table, run func(*bench, context.Context) error) error {
	bed, err := servers.New(ctx)
	if err != nil {
		return err
	}
	defer bed.Close()
	b := &bench{plan: p, Bed: bed, table: t}
	if b.push, err = newPush(ctx, bed.Client); err != nil {
		return err
	}
	if b.gateway, err = newGateway(); err != nil {
		return err
	}
	defer b.gateway.close()
	return run(b, ctx)
}

// startHost starts a process that can send.
func (b *bench) startHost() (*servers.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return b.Start(self, greeting, "delivery", "-host", b.RedisAddress)
}

// runHost starts one that sends.
func (b *bench) runHost(ctx context.Context) (*servers.Process, error) {
	host, err := b.startHost()
	if err != nil {
		return nil, err
	}
	_, err = ask(ctx, host, http.MethodPost, "/run", "")
	return host, err
}

// ask asks a host, and returns what it answers.
func ask(ctx context.Context, host *servers.Process, method, path, body string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+host.Address+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, reply.Status, text)
	}
	return string(text), err
}

func userName(n int) mxid.UserID { return mxid.UserID(fmt.Sprintf("@user%06d:example.org", n)) }

// inParallel calls a function with each number below n.
func inParallel(n int, do func(i int) error) error {
	const workers = 16
	var working sync.WaitGroup
	errs := make([]error, workers)
	for w := range workers {
		working.Go(func() {
			for i := w; i < n && errs[w] == nil; i += workers {
				errs[w] = do(i)
			}
		})
	}
	working.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// setPushers gives each of the first users a pusher at the gateway.
func (b *bench) setPushers(ctx context.Context, n int) error {
	return inParallel(n, func(i int) error {
		return b.push.Pushers.Set(ctx, userName(i), pusher.Pusher{
			Key: pusher.Key{AppID: "org.example.app", Pushkey: string(userName(i))}, Kind: pusher.HTTP,
			AppDisplayName: "App", DeviceDisplayName: "Phone", Lang: "en", Data: `{"url":"` + b.gateway.url() + `"}`,
		}, pusher.KeepOthers)
	})
}

// bodyBytes is how long the messages are: so that a notification is of about a
// thousand bytes.
const bodyBytes = 800

func eventID(n int) string { return fmt.Sprintf("$%09d", n) }

// message is an event of a room, number n.
func message(n int) module.Event {
	return module.Event{JSON: fmt.Sprintf(
		`{"event_id":"%s","room_id":"!room:example.org","type":"m.room.message","sender":"@bob:example.org","content":{"msgtype":"m.text","body":"%s"}}`,
		eventID(n), strings.Repeat("x", bodyBytes),
	)}
}

func members(first, n int) []match.Member {
	all := make([]match.Member, n)
	for i := range all {
		all[i].User = userName(first + i)
	}
	return all
}

// decide decides for the first users. What it decides fits all messages.
func (b *bench) decide(ctx context.Context, n int) (module.Decisions, error) {
	return b.push.Notifier.Decide(ctx, message(0), members(0, n))
}

// of is the median of a part of rounds.
func of[T ~int64 | ~float64](rounds []cpuRound, part func(cpuRound) T) T {
	values := make([]T, len(rounds))
	for i, r := range rounds {
		values[i] = part(r)
	}
	return median(values)
}

// median sorts the values.
func median[T ~int64 | ~float64](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}

func machine() string {
	return fmt.Sprintf("%s, %s/%s with %d cores, %s",
		time.Now().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
}
