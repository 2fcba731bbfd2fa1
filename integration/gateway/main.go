// Command gateway is a push gateway that delivers nothing: it prints a line for
// each notification that arrives, and makes trouble when its flags ask for it. Run
// it with -h for them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pushfx/pushfx/integration/gateway/receiver"
)

// The exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

const (
	requestTimeout = 15 * time.Second // to send a request
	graceTime      = time.Second      // for requests that run at the stop
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs the gateway until ctx ends, and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, flags, err := parseFlags(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, "A push gateway that prints what arrives, and delivers nothing.\n\nUsage: gateway [flags]\n\n")
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(stderr, "gateway: %v (-h explains the flags)\n", err)
		return exitUsage
	}
	if err := serve(ctx, cfg, stdout); err != nil {
		fmt.Fprintf(stderr, "gateway: %v\n", err)
		return exitFailure
	}
	return exitOK
}

// config is what the flags say.
type config struct {
	listen  string
	trouble receiver.Trouble
}

func parseFlags(args []string) (cfg config, flags *flag.FlagSet, err error) {
	flags = flag.NewFlagSet("gateway", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	reject := ""
	flags.StringVar(&cfg.listen, "listen", "127.0.0.1:5000", "`HOST:PORT` to listen on; port 0 is any free one")
	flags.IntVar(&cfg.trouble.Status, "status", 0, "`STATUS` to answer instead of 200, such as 429")
	flags.Func("retry-after", "`SECONDS` to tell in Retry-After with every status but 200", func(text string) error {
		seconds, err := time.ParseDuration(text + "s")
		cfg.trouble.RetryAfter = seconds
		return err
	})
	flags.Float64Var(&cfg.trouble.Fail, "fail", 0, "`SHARE` of the notifications to answer with 502, 0 to 1")
	flags.DurationVar(&cfg.trouble.Delay, "delay", 0, "`TIME` before each answer, such as 30s")
	flags.StringVar(&reject, "reject", "", "`PUSHKEYS` to reject, separated by commas")
	flags.BoolVar(&cfg.trouble.Hang, "hang", false, "never answer")
	if err = flags.Parse(args); err != nil {
		return cfg, flags, err
	}
	if reject != "" {
		cfg.trouble.Reject = strings.Split(reject, ",")
	}
	return cfg, flags, cfg.check(flags.Args())
}

func (c config) check(rest []string) error {
	switch t := c.trouble; {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case t.Status != 0 && (t.Status < 200 || t.Status > 599):
		return fmt.Errorf("-status is %d, want 200 to 599", t.Status)
	case t.Fail < 0 || t.Fail > 1:
		return fmt.Errorf("-fail is %v, want 0 to 1", t.Fail)
	case t.RetryAfter < 0, t.Delay < 0:
		return errors.New("-retry-after and -delay are not below 0")
	}
	return nil
}

// serve runs the gateway, on a listener of its own.
func serve(ctx context.Context, cfg config, stdout io.Writer) error {
	var lines sync.Mutex
	gateway := receiver.New(func(n receiver.Notification) {
		lines.Lock()
		defer lines.Unlock()
		fmt.Fprintln(stdout, n)
	})
	gateway.Make(cfg.trouble)
	var network net.ListenConfig
	listener, err := network.Listen(ctx, "tcp", cfg.listen)
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	server := &http.Server{Handler: gateway, ReadTimeout: requestTimeout}
	fmt.Fprintf(stdout, "A gateway for pushers with the URL http://%s%s\nCtrl-C stops it.\n", listener.Addr(), receiver.Path)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("cannot serve: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceTime)
	defer cancel()
	if server.Shutdown(grace) != nil {
		server.Close() // those that hang
	}
	return nil
}
