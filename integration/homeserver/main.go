// Command homeserver is a small Matrix homeserver that includes pushfx as any host does: it
// has its own authentication, error handler, Redis client and graceful stop. Try it in a
// browser, with curl or with Matrix clients, and copy from it.
//
// Anyone can log in as any user: every password is demo, and the token demo-alice is the user
// alice without a login. The host also serves the endpoints that clients need to start:
// login, logout, account data, filters and sync, with small rooms. -h explains the flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/dig"
	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/pushfx/pushfx/integration/homeserver/data"
	"github.com/pushfx/pushfx/integration/redisurl"
	"github.com/pushfx/pushfx/module/fault"
)

const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	// The Redis client would log its errors to stderr and not to zap. It also returns them.
	logging.Disable()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs the homeserver until ctx ends, and returns the exit status. It writes a failure as
// one line to stderr.
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

// serve starts the homeserver, prints the greeting, and stops when ctx ends or a server
// fails.
func serve(ctx context.Context, cfg config, stdout, stderr io.Writer) (err error) {
	if cfg.redis.Mode == redisurl.Embedded {
		memory, err := startEmbedded()
		if err != nil {
			return err
		}
		defer memory.Close()
		cfg.redis = redisurl.EmbeddedAt(memory.Addr())
	}
	db, closeData, err := openData(ctx, cfg.data)
	if err != nil {
		return err
	}
	defer closeData()
	if cfg.mail != "" {
		if err := cfg.openMail(ctx); err != nil {
			return err
		}
		defer cfg.closeMail()
	}
	log := newLogger(stderr, cfg.logLevel)
	var listening *servers
	app := fx.New(homeserver(cfg, db, log, stdout), fx.Populate(&listening))
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

// start starts the app completely even if ctx ends; the app then stops.
func start(ctx context.Context, app *fx.App) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), app.StartTimeout())
	defer cancel()
	// The container's errors name every constructor in the chain; the cause is enough.
	return dig.RootCause(app.Start(ctx))
}

// stop stops the app, also after ctx has ended.
func stop(ctx context.Context, app *fx.App) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), app.StopTimeout())
	defer cancel()
	return app.Stop(ctx)
}

// openData opens the file of -data, or a temporary one, which closeData removes.
func openData(ctx context.Context, file string) (db *data.DB, closeData func(), err error) {
	folder := ""
	if file == "" {
		if folder, err = os.MkdirTemp("", "pushfx-demo-*"); err != nil {
			return nil, nil, fmt.Errorf("-data: %w", err)
		}
		file = filepath.Join(folder, "demo.db")
	}
	remove := func() {
		if folder != "" {
			os.RemoveAll(folder)
		}
	}
	if db, err = data.Open(ctx, file); err != nil {
		remove()
		return nil, nil, fmt.Errorf("-data: %w", err)
	}
	return db, func() {
		db.Close()
		remove()
	}, nil
}

func startEmbedded() (*miniredis.Miniredis, error) {
	memory, err := miniredis.Run()
	if err != nil {
		return nil, fmt.Errorf("cannot start the embedded Redis: %w", err)
	}
	memory.ClockTTL(true) // keys expire by the clock
	return memory, nil
}

func complain(stderr io.Writer, err error) {
	line := strings.Join(strings.FieldsFunc(fault.Details(err), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	fmt.Fprintf(stderr, "homeserver: %s\n", redisurl.WithoutLogin(line))
}
