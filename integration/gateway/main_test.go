package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestALineIsPrinted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stdout, w := io.Pipe()
	exited := make(chan int, 1)
	go func() {
		exited <- run(ctx, []string{"-listen", "127.0.0.1:0", "-status", "429", "-retry-after", "5"}, w, io.Discard)
		w.Close()
	}()
	lines := make(chan string, 10)
	go func() {
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	_, address, found := strings.Cut(<-lines, "http://")
	if !found {
		t.Fatal("the greeting has no address")
	}
	url := "http://" + address
	<-lines
	answer, err := http.Post(url, "application/json",
		strings.NewReader(`{"notification":{"event_id":"$a","devices":[{"app_id":"a","pushkey":"b"}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Retry-After") != "5" {
		t.Errorf("got %d, %v", answer.StatusCode, answer.Header)
	}
	if line := <-lines; !strings.Contains(line, "event $a") {
		t.Errorf("got %q", line)
	}
	cancel()
	if status := <-exited; status != exitOK {
		t.Errorf("exit status %d", status)
	}
}

func TestFlagsAreChecked(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"x":               `unexpected argument "x"`,
		"-status=42":      "-status is 42",
		"-fail=2":         "-fail is 2",
		"-delay=-1s":      "not below 0",
		"-retry-after=-1": "not below 0",
		"-retry-after=x":  "retry-after",
		"-listen=nowhere": "cannot listen",
	} {
		var stderr strings.Builder
		if status := run(t.Context(), []string{args}, io.Discard, &stderr); status == exitOK || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: status %d, %s", args, status, &stderr)
		}
	}
	var stdout strings.Builder
	if status := run(t.Context(), []string{"-h"}, &stdout, io.Discard); status != exitOK || !strings.Contains(stdout.String(), "-retry-after") {
		t.Errorf("-h: status %d, %s", status, &stdout)
	}
}
