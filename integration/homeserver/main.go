// Command homeserver is a small Matrix homeserver that includes the push rules
// and pushers module as any host does: its own authentication, its own error
// handler, its own Redis client, and a graceful stop. It is made to be tried
// with curl and with Matrix clients, and to be copied from.
//
// Anyone can be any user on it: the password of all users is demo, and the token
// demo-alice is the user alice without a login. Beside the module's endpoints it
// has what clients need to start with them: login, logout, account data, filters
// and a sync. Run it with -h for its flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/dig"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/integration/redisurl"
	"github.com/pushfx/pushfx/module/fault"
)

// The exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	// The Redis client would write to stderr past zap, and what it has to tell
	// comes out as errors too.
	logging.Disable()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs the homeserver until ctx ends, and returns the exit status. What
// goes wrong is one line on stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parseFlags(args)
	if errors.Is(err, flag.ErrHelp) {
		writeUsage(stdout)
		return exitOK
	}
	if err != nil {
		complain(stderr, fmt.Errorf("%w (-h explains the flags)", err))
		return exitUsage
	}
	if err := serve(ctx, cfg, stdout, stderr); err != nil {
		complain(stderr, err)
		return exitFailure
	}
	return exitOK
}

// serve starts the homeserver, greets, and stops it when ctx ends or it can no
// longer serve.
func serve(ctx context.Context, cfg config, stdout, stderr io.Writer) (err error) {
	if cfg.redis.Mode == redisurl.Embedded {
		memory, err := startEmbedded()
		if err != nil {
			return err
		}
		defer memory.Close()
		cfg.redis = redisurl.EmbeddedAt(memory.Addr())
	}
	log := newLogger(stderr, cfg.logLevel)
	var listening *servers
	app := fx.New(homeserver(cfg, log, stdout), fx.Populate(&listening))
	if err := start(ctx, app); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(ctx, app)) }()

	log.Info("started", zap.Stringer("address", listening.clients.address()), zap.Stringer("redis", cfg.redis))
	greet(stdout, cfg, listening)
	select {
	case <-ctx.Done():
		log.Info("stopping")
		return nil
	case err := <-listening.failed:
		return err
	}
}

// start starts the app. It does not end with ctx, so that an app that is told
// to stop while it starts is started and stopped as a whole.
func start(ctx context.Context, app *fx.App) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), app.StartTimeout())
	defer cancel()
	// The container's errors tell a long way from the cause to where it was
	// noticed; the cause says it all.
	return dig.RootCause(app.Start(ctx))
}

// stop stops the app, though ctx has ended.
func stop(ctx context.Context, app *fx.App) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), app.StopTimeout())
	defer cancel()
	return app.Stop(ctx)
}

// startEmbedded starts a Redis in this process.
func startEmbedded() (*miniredis.Miniredis, error) {
	memory, err := miniredis.Run()
	if err != nil {
		return nil, fmt.Errorf("cannot start the embedded Redis: %w", err)
	}
	memory.ClockTTL(true) // keys expire as time goes by
	return memory, nil
}

// complain writes what went wrong, on one line.
func complain(stderr io.Writer, err error) {
	line := strings.Join(strings.FieldsFunc(fault.Details(err), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	fmt.Fprintf(stderr, "homeserver: %s\n", redisurl.WithoutLogin(line))
}
