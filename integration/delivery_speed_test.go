package integration

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/module/delivery/dialguard"
	"github.com/pushfx/pushfx/module/match"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/redistest"
)

// speedGatewayVariable has the test program be a push gateway that counts.
const speedGatewayVariable = "PUSHFX_TEST_SPEED_GATEWAY"

// runSpeedGateway is such a gateway. It prints its URL, and serves the number of
// notifications so far below /count.
func runSpeedGateway() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + listener.Addr().String())
	var posts atomic.Int64
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/count" {
			fmt.Fprint(w, posts.Load())
			return
		}
		io.Copy(io.Discard, r.Body)
		posts.Add(1)
		io.WriteString(w, `{"rejected":[]}`)
	}))
}

// speedGateway is a gateway as a process of its own, so that it is not measured.
type speedGateway struct{ url string }

func startSpeedGateway(b *testing.B) speedGateway {
	b.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), speedGatewayVariable+"=1")
	stdout, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return speedGateway{strings.TrimSpace(line)}
}

func (g speedGateway) count(b *testing.B) int {
	reply, err := http.Get(g.url + "/count")
	if err != nil {
		b.Fatal(err)
	}
	defer reply.Body.Close()
	text, _ := io.ReadAll(reply.Body)
	n, err := strconv.Atoi(string(text))
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// wait waits until so many notifications have arrived.
func (g speedGateway) wait(b *testing.B, n int) {
	for deadline := time.Now().Add(2 * time.Minute); g.count(b) < n; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("%d of %d notifications have arrived", g.count(b), n)
		}
	}
}

// processCPU is what this process has used.
func processCPU(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// redisCPU is what a server has used.
func redisCPU(b *testing.B, client redis.UniversalClient) time.Duration {
	info, err := client.Info(b.Context(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	var all time.Duration
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			seconds, _ := strconv.ParseFloat(value, 64)
			all += time.Duration(seconds * float64(time.Second))
		}
	}
	return all
}

// speedBody is about what delivery sends in these benches.
const speedBody = `{"notification":{"event_id":"$1234","room_id":"!room:x","type":"m.room.message","sender":"@bob:localhost","prio":"low",` +
	`"content":{"msgtype":"m.text","body":"%s"},"devices":[{"app_id":"app","pushkey":"@user123:x","pushkey_ts":1700000000,"data":{},"tweaks":{}}]}}`

// postBare posts bodies as a bare client with connections that are kept does.
func postBare(b *testing.B, url string, n, workers int, body string) {
	client := dialguard.New(allowLoopback(pushfx.DefaultConfig()).PusherPolicy.AllowedPrefixes...).Client(workers)
	defer client.CloseIdleConnections()
	var left atomic.Int64
	left.Store(int64(n))
	var working sync.WaitGroup
	for range workers {
		working.Go(func() {
			for left.Add(-1) >= 0 {
				reply, err := client.Post(url, "application/json", bytes.NewReader([]byte(body)))
				if err != nil {
					b.Error(err)
					return
				}
				io.Copy(io.Discard, reply.Body)
				reply.Body.Close()
			}
		})
	}
	working.Wait()
}

// BenchmarkDeliveryBesideABareClient sends the same notifications with delivery and
// with a bare client: events that go to one user each, and events that go to a
// thousand. Events are handed over before they are sent, so that both are measured
// alone.
func BenchmarkDeliveryBesideABareClient(b *testing.B) {
	for _, members := range []int{1, 1000} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) {
			n := max(b.N/members, 1) * members
			gateway, server := startSpeedGateway(b), redistest.Single(b)
			client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, MaintNotificationsConfig: noMaintenance()})
			defer client.Close()
			push, err := pushfx.New(client, allowLoopback(pushfx.DefaultConfig()), pushfx.Options{Delivery: &pushfx.DeliveryOptions{}})
			if err != nil {
				b.Fatal(err)
			}
			if err := push.Check(b.Context()); err != nil {
				b.Fatal(err)
			}
			body := strings.Repeat("x", 500)
			users := make([]match.Member, 1000)
			for i := range users {
				users[i].User = mxid.UserID(fmt.Sprintf("@user%d:x", i))
				p := pusherAt(gateway.url+pusher.NotifyPath, string(users[i].User))
				if err := push.Pushers.Set(b.Context(), users[i].User, p, pusher.KeepOthers); err != nil {
					b.Fatal(err)
				}
			}
			bareCPU := processCPU(b)
			began := time.Now()
			postBare(b, gateway.url+pusher.NotifyPath, n, 64, fmt.Sprintf(speedBody, body))
			bareCPU, bareTook := processCPU(b)-bareCPU, time.Since(began)

			for e := range n / members {
				event := message(e)
				event.JSON = strings.Replace(event.JSON, fmt.Sprintf(`"body":"%d"`, e), `"body":"`+body+`"`, 1)
				from := e * members % len(users)
				decisions, err := push.Notifier.Decide(b.Context(), event, users[from:from+members])
				if err == nil {
					err = push.Notifier.Notify(b.Context(), event, "", decisions)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			cpu, redisUsed := processCPU(b), redisCPU(b, client)
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			began = time.Now()
			go func() {
				defer close(ended)
				push.Run(ctx)
			}()
			gateway.wait(b, 2*n)
			took := time.Since(began)
			cpu, redisUsed = processCPU(b)-cpu, redisCPU(b, client)-redisUsed
			cancel()
			<-ended
			if got := gateway.count(b); got != 2*n {
				b.Errorf("%d notifications have arrived, want %d", got-n, n)
			}
			each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(n) }
			b.ReportMetric(each(bareCPU), "bare-cpu-us")
			b.ReportMetric(each(cpu), "cpu-us")
			b.ReportMetric(float64(cpu)/float64(bareCPU), "cpu-ratio")
			b.ReportMetric(each(redisUsed), "redis-us")
			b.ReportMetric(float64(bareTook)/float64(took), "rate-ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}
