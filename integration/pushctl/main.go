// Command pushctl shows, checks, repairs and moves what the push rules and
// pushers module keeps on a Redis, for operators. It works while hosts run, and makes
// each change by the same compare-and-set as they do. Run it with -h for its commands.
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
	"text/tabwriter"

	"github.com/redis/go-redis/v9/logging"

	"github.com/pushfx/pushfx/integration/redisurl"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// The exit statuses.
const (
	exitOK          = 0
	exitProblems    = 1 // problems were found, or are left
	exitFailure     = 2
	exitInterrupted = 3
)

func main() {
	logging.Disable() // what the Redis client has to tell comes out as errors too
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

// command is a command of pushctl.
type command struct {
	name, args string // an argument in brackets may be left out
	summary    string // on one line
	about      string // what -h tells beside the flags

	// setup declares the flags of the command, and returns what runs it when they
	// are read.
	setup func(*flags) runner
}

type runner func(context.Context, *call) error

// call is one call of a command.
type call struct {
	*backend
	args  []string
	out   io.Writer // what was asked for
	notes io.Writer // how it goes
}

// commands are all commands.
func commands() []command {
	return []command{
		showCommand(), checkCommand(), repairCommand(), refreshCommand(), exportCommand(), importCommand(), resetCommand(),
		forgetCommand(), queuesCommand(), queuesShowCommand(), queuesRetryCommand(), queuesFlushCommand(),
		sendTestCommand(),
		gatewaysCommand(), gatewaysHoldCommand(), gatewaysOpenCommand(),
	}
}

// errProblems ends a command that did what it should, and found problems.
var errProblems = errors.New("there are problems")

// run runs a command and returns the exit status. What goes wrong is one line
// on stderr.
func run(ctx context.Context, args []string, environment func(string) string, stdout, stderr io.Writer) int {
	err := runCommand(ctx, args, environment, stdout, stderr)
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, errProblems):
		return exitProblems
	case ctx.Err() != nil:
		complain(stderr, errors.New("interrupted: what was done stays, and the same call does the rest"))
		return exitInterrupted
	}
	complain(stderr, err)
	return exitFailure
}

func runCommand(ctx context.Context, args []string, environment func(string) string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errors.New("want a command (-h lists them)")
	}
	if name := args[0]; name == "-h" || name == "-help" || name == "--help" || name == "help" {
		writeUsage(stdout)
		return flag.ErrHelp
	}
	c, rest, found := findCommand(args)
	if !found {
		return fmt.Errorf("%q is no command (-h lists them)", strings.Join(args[:min(2, len(args))], " "))
	}
	return c.call(ctx, rest, environment, stdout, stderr)
}

// findCommand returns the command that arguments begin with, whose name has one word
// or two, and the rest of them.
func findCommand(args []string) (c command, rest []string, found bool) {
	for words := min(2, len(args)); words > 0; words-- {
		for _, c := range commands() {
			if c.name == strings.Join(args[:words], " ") {
				return c, args[words:], true
			}
		}
	}
	return command{}, nil, false
}

// call runs the command with its flags and arguments.
func (c command) call(ctx context.Context, args []string, environment func(string) string, stdout, stderr io.Writer) error {
	f := newFlags(c.name)
	run := c.setup(f)
	rest, err := f.parseAll(args)
	if errors.Is(err, flag.ErrHelp) {
		c.writeUsage(stdout, f)
		return err
	}
	most := len(strings.Fields(c.args))
	if err == nil && (len(rest) < most-strings.Count(c.args, "[") || len(rest) > most) {
		err = fmt.Errorf("want pushctl %s", strings.TrimSpace(c.name+" [flags] "+c.args))
	}
	if err != nil {
		return fmt.Errorf("%w (pushctl %s -h explains the flags)", err, c.name)
	}
	b, err := f.connect(ctx, environment)
	if err != nil {
		return err
	}
	defer b.client.Close()
	return run(ctx, &call{backend: b, args: rest, out: stdout, notes: stderr})
}

// userArgument is the user that a command is about.
func (c *call) userArgument() (mxid.UserID, error) {
	user := mxid.UserID(c.args[0])
	if err := user.Validate(); err != nil {
		return "", fmt.Errorf("%q: %w, want @NAME:SERVER", c.args[0], err)
	}
	return user, nil
}

// writeUsage lists the commands.
func writeUsage(w io.Writer) {
	fmt.Fprint(w, "Shows, checks, repairs and moves the push rules and pushers on a Redis.\n\n"+
		"Usage: pushctl COMMAND [flags]\n\n")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range commands() {
		fmt.Fprintf(table, "  %s\t%s\n", strings.TrimSpace(c.name+" "+c.args), c.summary)
	}
	table.Flush()
	fmt.Fprint(w, "\npushctl COMMAND -h explains a command. The Redis is named by -redis-mode and -redis, or\n"+
		"by $"+redisVariable+", which may be a URL with a password; on the command line there is none.\n"+
		"Exit status: 0 all is well, 1 there are problems, 2 it failed, 3 it was interrupted.\n")
}

func (c command) writeUsage(w io.Writer, f *flags) {
	f.SetOutput(w)
	fmt.Fprintf(w, "%s\n\nUsage: pushctl %s\n\n", strings.TrimSpace(c.about), strings.TrimSpace(c.name+" [flags] "+c.args))
	f.PrintDefaults()
}

// complain writes what went wrong, on one line.
func complain(stderr io.Writer, err error) {
	line := strings.Join(strings.FieldsFunc(fault.Details(err), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	fmt.Fprintf(stderr, "pushctl: %s\n", redisurl.WithoutLogin(line))
}
