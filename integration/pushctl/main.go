// Command pushctl shows, checks, repairs and moves the module's data in Redis, for operators. Hosts may run at the same
// time: pushctl changes data by the same compare-and-set. Run it with -h for its commands.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/redis/go-redis/v9/logging"

	"github.com/pushfx/pushfx/integration/redisurl"
	"github.com/pushfx/pushfx/module/delivery/channel/webpush"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

const (
	exitOK          = 0
	exitProblems    = 1 // problems were found or remain, or the user or gateway is unknown
	exitFailure     = 2
	exitInterrupted = 3
)

func main() {
	logging.Disable() // the Redis client would log errors that commands also return
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

type command struct {
	name, args string // arguments in brackets are optional
	summary    string // one line
	about      string // the text of -h above the flags

	flags func(*flags) // declares the command's own flags; nil for none
	run   func(*call, context.Context) error
}

// call is a call of a command.
type call struct {
	*backend
	options
	args  []string
	in    io.Reader // the file "-"
	out   io.Writer // results
	notes io.Writer // progress
}

func commands() []command {
	return []command{
		showCommand, checkCommand, repairCommand, refreshCommand, exportCommand, importCommand, resetCommand,
		forgetCommand, explainCommand, queuesCommand, queuesShowCommand, queuesRetryCommand, queuesFlushCommand,
		sendTestCommand, gatewaysCommand,
	}
}

// errProblems ends a command that succeeded but found problems.
var errProblems = errors.New("there are problems")

// errChanging marks the error of a command that may have changed data before it was interrupted.
var errChanging = errors.New("the command changes data")

// notFoundError ends a command about an unknown user or gateway, whose name may be mistyped.
type notFoundError string

// Error returns what was not found.
func (e notFoundError) Error() string { return string(e) }

// run runs a command and returns the exit status. An error is one line on stderr.
func run(ctx context.Context, args []string, environment func(string) string, stdout, stderr io.Writer) int {
	err := runCommand(ctx, args, environment, stdout, stderr)
	var notFound notFoundError
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, errProblems):
		return exitProblems
	case errors.As(err, &notFound):
		complain(stderr, notFound)
		return exitProblems
	case ctx.Err() != nil && errors.Is(err, errChanging):
		complain(stderr, errors.New("interrupted: finished changes stay; run the same command again for the rest"))
		return exitInterrupted
	case ctx.Err() != nil:
		complain(stderr, errors.New("interrupted: run the same command again"))
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
	} else if print := offline()[name]; print != nil && len(args) > 1 {
		return fmt.Errorf("want pushctl %s, without flags or arguments", name)
	} else if print != nil {
		_, err := fmt.Fprintln(stdout, print())
		return err
	}
	c, rest, found := findCommand(args)
	if !found {
		return fmt.Errorf("unknown command %q (-h lists all)", strings.Join(args[:min(2, len(args))], " "))
	}
	return c.call(ctx, rest, environment, stdout, stderr)
}

// findCommand finds the command whose name, of one or two words, begins the arguments. It also returns the other
// arguments.
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

func (c command) call(ctx context.Context, args []string, environment func(string) string, stdout, stderr io.Writer) error {
	f := newFlags(c)
	rest, err := f.parseAll(args)
	if errors.Is(err, flag.ErrHelp) {
		c.writeUsage(stdout, f)
		return err
	}
	maxArgs := len(strings.Fields(c.args))
	if err == nil && (len(rest) < maxArgs-strings.Count(c.args, "[") || len(rest) > maxArgs) {
		err = fmt.Errorf("want pushctl %s", strings.TrimSpace(c.name+" [flags] "+c.args))
	}
	if err != nil {
		return fmt.Errorf("%w (pushctl %s -h explains the flags)", err, c.name)
	}
	b, err := f.connect(ctx, environment)
	if err != nil {
		return err
	}
	defer b.close()
	err = c.run(&call{backend: b, options: f.options, args: rest, in: os.Stdin, out: stdout, notes: stderr}, ctx)
	if err != nil && ctx.Err() != nil && f.changes() {
		err = errors.Join(err, errChanging)
	}
	return err
}

// offline are the commands that print something without a Redis.
func offline() map[string]func() string {
	return map[string]func() string{"version": version, "vapid-key": webpush.NewKey}
}

// version returns the version of this program: of the module, or of the commit that it was built from.
func version() string {
	text := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		text = info.Main.Version
	}
	return "pushctl " + text + " " + runtime.Version()
}

func (c *call) userArgument() (mxid.UserID, error) {
	user := mxid.UserID(c.args[0])
	if err := user.Validate(); err != nil {
		return "", fmt.Errorf("%q: %w, want @NAME:SERVER", c.args[0], err)
	}
	return user, nil
}

// checkUser returns a [notFoundError] if nothing is stored for the user.
func (c *call) checkUser(ctx context.Context, user mxid.UserID) error {
	values, err := c.readOfUser(ctx, c.keys.Rules(user), c.keys.Pushers(user))
	if err == nil && !slices.ContainsFunc(values, func(v value) bool { return v.state != isAbsent }) {
		err = c.notFound(user)
	}
	return err
}

// notFound is the error for a user without data.
func (c *call) notFound(user mxid.UserID) error {
	return notFoundError(fmt.Sprintf("%s has no push rules and no pushers under -key-prefix %q on %s",
		printable(string(user)), c.keys.Prefix, c.servers))
}

func writeUsage(w io.Writer) {
	fmt.Fprint(w, "Shows, checks, repairs and moves the push rules and pushers on a Redis.\n\n"+
		"Usage: pushctl COMMAND [flags]\n\n")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range commands() {
		fmt.Fprintf(table, "  %s\t%s\n", strings.TrimSpace(c.name+" "+c.args), c.summary)
	}
	fmt.Fprintln(table, "  vapid-key\tprints a new secret WebPush.Key for the hosts; with another one, all push subscriptions end")
	fmt.Fprintln(table, "  version\tshows the version of this program")
	table.Flush()
	fmt.Fprint(w, "\npushctl COMMAND -h explains a command. -redis-mode and -redis name the Redis; so does\n"+
		"$"+redisVariable+", a URL that may hold a password, which -redis may not.\n"+
		"Exit status: 0 all is well, 1 problems found or left, or no such user or gateway, 2 failed,\n"+
		"3 interrupted.\n")
}

func (c command) writeUsage(w io.Writer, f *flags) {
	f.SetOutput(w)
	about := strings.Join(wrapped(strings.ReplaceAll(c.about, "\n", " "), maxColumns), "\n")
	fmt.Fprintf(w, "%s\n\nUsage: pushctl %s\n\n", about, strings.TrimSpace(c.name+" [flags] "+c.args))
	f.PrintDefaults()
}

func complain(stderr io.Writer, err error) {
	line := strings.Join(strings.FieldsFunc(fault.Details(err), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	fmt.Fprintf(stderr, "pushctl: %s\n", redisurl.WithoutLogin(line))
}
