package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx"
	"github.com/pushfx/pushfx/integration/hosttest"
	"github.com/pushfx/pushfx/module/commit/rediscommit"
	"github.com/pushfx/pushfx/module/mxid"
)

// With these environment variables the test program is a host with delivery. deliveryHostVariable has the
// addresses of its Redis, separated by commas. durabilityVariable has the host's durability, as in flags.
const (
	deliveryHostVariable = "PUSHFX_TEST_DELIVERY_HOST"
	durabilityVariable   = "PUSHFX_TEST_DURABILITY"
)

// sendRequest asks such a host to send an event.
type sendRequest struct {
	Event   string
	Members []mxid.UserID
}

// runDeliveryHost runs such a host until a SIGTERM. The host prints its URL.
func runDeliveryHost(redisAddress string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client := connectDelivery(strings.Split(redisAddress, ","))
	defer client.Close()
	cfg := hosttest.WithWebPush(pushfx.DefaultConfig())
	var err error
	if cfg.Redis.Durability, err = rediscommit.ParseDurability(os.Getenv(durabilityVariable)); err != nil {
		return err
	}
	push, err := pushfx.New(client, cfg, pushfx.Options{Delivery: &pushfx.DeliveryOptions{}})
	if err != nil {
		return err
	}
	if err := push.Check(ctx); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request sendRequest
		err := json.NewDecoder(r.Body).Decode(&request)
		if err == nil {
			err = hosttest.SendEvent(r.Context(), push.Notifier, hosttest.InRoom(request.Event), request.Members...)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})}
	defer server.Close()
	go server.Serve(listener)
	fmt.Println("http://" + listener.Addr().String())
	push.Run(ctx)
	return nil
}

func connectDelivery(addresses []string) redis.UniversalClient {
	if len(addresses) == 1 {
		return redis.NewClient(&redis.Options{
			Addr: addresses[0], ContextTimeoutEnabled: true, MaintNotificationsConfig: hosttest.NoMaintenance(),
		})
	}
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addresses, ContextTimeoutEnabled: true, MaintNotificationsConfig: hosttest.NoMaintenance(),
		ClusterStateReloadInterval: 2 * time.Second,
	})
}

type deliveryHost struct {
	url     string
	command *exec.Cmd
}

func startDeliveryHost(t *testing.T, redisAddress string, durability rediscommit.Durability) *deliveryHost {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program)
	command.Env = append(os.Environ(), deliveryHostVariable+"="+redisAddress, durabilityVariable+"="+durability.String())
	command.Stderr = os.Stderr
	stdout, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill() // it may have ended
		_ = command.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the host does not print its URL: %v", err)
	}
	return &deliveryHost{strings.TrimSpace(line), command}
}

func (h *deliveryHost) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := h.command.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func (h *deliveryHost) send(ctx context.Context, client *http.Client, r sendRequest) bool {
	body, err := json.Marshal(r)
	if err != nil {
		return false
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, strings.NewReader(string(body)))
	if err != nil {
		return false
	}
	answer, err := client.Do(request)
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}
