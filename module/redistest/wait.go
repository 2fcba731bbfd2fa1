package redistest

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const pollInterval = 20 * time.Millisecond

// poll calls check until it succeeds or the context ends, and then returns the
// last error that was not merely the end of the context.
func poll(ctx context.Context, check func(context.Context) error) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-ticker.C:
		}
	}
}

func checkDial(ctx context.Context, addr string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp4", addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// readInfo returns the fields of a section of INFO.
func readInfo(ctx context.Context, client *redis.Client, section string) (map[string]string, error) {
	text, err := client.Info(ctx, section).Result()
	if err != nil {
		return nil, err
	}
	return parseInfo(text), nil
}

// checkReplication succeeds when the server is a master that feeds this number
// of replicas, or is a replica that follows its master.
func checkReplication(ctx context.Context, client *redis.Client, replicas int) error {
	info, err := readInfo(ctx, client, "replication")
	if err != nil {
		return err
	}
	if info["role"] != "master" {
		if link := info["master_link_status"]; link != "up" {
			return fmt.Errorf("the link to the master is %q", link)
		}
		return nil
	}
	if fed := fedReplicas(info); fed != replicas {
		return fmt.Errorf("the master feeds %d replicas, not %d", fed, replicas)
	}
	return nil
}

// fedReplicas counts the replicas that have confirmed part of the stream of
// writes. The state "online" is not enough: a master may hold the writes back
// until the first confirmation.
func fedReplicas(info map[string]string) int {
	fed := 0
	for name, value := range info {
		isReplica := strings.HasPrefix(name, "slave") && strings.Contains(value, "state=online")
		if isReplica && !strings.Contains(value, "offset=0,") {
			fed++
		}
	}
	return fed
}

// parseInfo reads "name:value" lines.
func parseInfo(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	return fields
}

// logs returns the last log lines of all the servers, for messages.
func logs(servers []*Server) string {
	var text strings.Builder
	for _, s := range servers {
		s.mu.Lock()
		fmt.Fprintf(&text, "server at %s, %s\n", s.Addr(), s.process.lastLog())
		s.mu.Unlock()
	}
	return text.String()
}
