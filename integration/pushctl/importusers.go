package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/strictjson"
)

// What is imported from another server is JSON Lines: a line for each user, of
// which the README tells the members.

// userLine is a line.
type userLine struct {
	number  int64
	user    mxid.UserID
	from    module.Import
	refused []module.RefusedPusher // pushers that cannot be read
}

// badLineError tells what is wrong with a line, and repeats nothing of it.
type badLineError struct {
	number int64
	cause  error
}

func (e *badLineError) Error() string {
	return fmt.Sprintf("line %d: %s", e.number, fault.Details(e.cause))
}

// readUserLines reads lines from the first to the last, or to the first that is
// bad.
func readUserLines(from io.Reader, each func(userLine) error) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 1<<16), maxLine)
	number := int64(0)
	for lines.Scan() {
		number++
		l, err := readUserLine(lines.Text())
		if err != nil {
			return &badLineError{number, err}
		}
		l.number = number
		if err := each(l); err != nil {
			return err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return &badLineError{number + 1, fmt.Errorf("longer than %d bytes", maxLine)}
	}
	return lines.Err()
}

func readUserLine(text string) (l userLine, err error) {
	r := strictjson.NewReader(text)
	err = r.Object(func(name string) (err error) {
		switch name {
		case "user_id":
			var user string
			user, err = r.String()
			l.user = mxid.UserID(user)
		case "push_rules":
			if null, err := r.Null(); null {
				return err
			}
			l.from.Rules, err = r.Value()
		case "pushers":
			err = r.Array(func() error { return l.readPusher(r) })
		case "pushctl_archive":
			return errors.New("the file is one of export, which import brings back without -from")
		default:
			return errors.New("want the members user_id, push_rules and pushers, and no others")
		}
		return err
	}, "user_id")
	if err == nil {
		err = l.user.Validate()
	}
	return l, err
}

// readPusher reads a pusher. If it cannot be read, the user's other pushers still count.
func (l *userLine) readPusher(r *strictjson.Reader) error {
	text, err := r.Value()
	if err != nil {
		return err
	}
	p, err := pusher.ReadImported(text)
	if err != nil {
		key := keyOf(text)
		l.refused = append(l.refused, module.RefusedPusher{AppID: key.AppID, Key: key.Digest(), Err: err})
		return nil
	}
	l.from.Pushers = append(l.from.Pushers, p)
	return nil
}

// keyOf returns the key in the text of a pusher, as far as it is there.
func keyOf(text string) (key pusher.Key) {
	if !strings.HasPrefix(text, "{") {
		return key
	}
	w := strictjson.Walk(text)
	for name := range w.Object() {
		switch {
		case name == "app_id" && w.Next() == '"':
			key.AppID = w.String()
		case name == "pushkey" && w.Next() == '"':
			key.Pushkey = w.String()
		}
	}
	return key
}

// readPrefixes reads addresses as policies have them, separated by commas.
func readPrefixes(text string) (prefixes []netip.Prefix, err error) {
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(part)
		if err != nil {
			return nil, err
		}
		prefixes = append(prefixes, prefix)
	}
	return prefixes, nil
}

// userImport imports the users of a file.
type userImport struct {
	*call
	mode     module.ImportMode
	pace     *pace
	progress *progress
	counts   userCounts
}

// userCounts is what an import of users comes to.
type userCounts struct {
	imported, there, refused                 int64 // users
	rules, refusedRules, dropped             int64
	pushers, refusedPushers, pushersWereLeft int64
}

func (c *call) importUsers(ctx context.Context) error {
	if c.overwrite {
		return errors.New("-overwrite is for files of export: what users have here stays")
	}
	file, err := c.openUsers()
	if err != nil {
		return err
	}
	defer file.Close()
	i := &userImport{call: c, mode: module.StoreImport, pace: &pace{rate: c.rate}, progress: c.newProgress("imported", "users")}
	if c.dryRun {
		i.mode = module.DryRunImport
	}
	i.progress.start(0)
	err = i.importAll(ctx, file)
	i.progress.stop()
	i.report()
	const goesOn = "the same call goes on, and leaves alone what it has stored"
	switch badLine := (*badLineError)(nil); {
	case ctx.Err() != nil:
		return &interruptedError{goesOn}
	case errors.As(err, &badLine):
		return fmt.Errorf("%w (nothing behind it was read)", err)
	case err != nil:
		return fmt.Errorf("%w (%s)", err, goesOn)
	case i.counts.refused+i.counts.refusedRules+i.counts.refusedPushers > 0:
		return errProblems
	}
	return nil
}

// openUsers opens the file that -from names, or stdin.
func (c *call) openUsers() (io.ReadCloser, error) {
	if c.from == "-" {
		return io.NopCloser(os.Stdin), nil
	}
	return os.Open(c.from)
}

// importAll imports the users of a file, a batch at a time.
func (i *userImport) importAll(ctx context.Context, file io.Reader) error {
	batch := make([]userLine, 0, importBatch)
	flush := func() error {
		err := i.importBatch(ctx, batch)
		i.progress.add(len(batch))
		batch = batch[:0]
		return err
	}
	bad := readUserLines(file, func(l userLine) error {
		if err := i.pace.wait(ctx, 1); err != nil {
			return err
		}
		if batch = append(batch, l); len(batch) < i.pace.page(importBatch) {
			return nil
		}
		return flush()
	})
	if ctx.Err() != nil {
		return bad
	}
	return errors.Join(flush(), bad) // what comes before a bad line is imported
}

// importBatch imports users who have no push rules. Those who have some were
// imported before, or have changed something here.
func (i *userImport) importBatch(ctx context.Context, batch []userLine) error {
	missing, err := i.missing(ctx, batch)
	if err != nil {
		return err
	}
	i.counts.there += int64(len(batch) - len(missing))
	done, err := parallel(ctx, missing, i.importUser)
	for _, u := range done {
		i.note(u)
	}
	return err
}

// missing returns the lines of users who have no push rules, the first of each.
func (i *userImport) missing(ctx context.Context, batch []userLine) (missing []userLine, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	users := make([]mxid.UserID, len(batch))
	for n, l := range batch {
		users[n] = l.user
	}
	versions := i.rules.Versions(ctx, users)
	seen := map[mxid.UserID]bool{}
	for _, l := range batch {
		version := versions[l.user]
		if version.Err != nil && !isRefused(version.Err) {
			return nil, fmt.Errorf("%s: %w", printable(string(l.user)), version.Err)
		}
		if version.Err == nil && version.Value == 0 && !seen[l.user] {
			missing = append(missing, l)
		}
		seen[l.user] = true
	}
	return missing, nil
}

// importedUser is a user with what became of them.
type importedUser struct {
	userLine
	result module.ImportResult
	err    error // why nothing was imported
}

func (i *userImport) importUser(ctx context.Context, l userLine) (importedUser, error) {
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	result, err := i.host.Import(ctx, l.user, l.from, i.mode)
	if err != nil && !isRefused(err) {
		return importedUser{}, fmt.Errorf("line %d: %s: %w", l.number, printable(string(l.user)), err)
	}
	result.Pushers.Refused = append(l.refused, result.Pushers.Refused...)
	return importedUser{l, result, err}, nil
}

// note counts a user, and lists what was refused.
func (i *userImport) note(u importedUser) {
	if u.err != nil {
		i.counts.refused++
		i.list(u, "user", u.err)
		return
	}
	if u.result.Rules.Outcome == module.AlreadyThere {
		i.counts.there++ // since a moment ago
	} else {
		i.counts.imported++
	}
	i.counts.rules += int64(u.result.Rules.Own)
	i.counts.dropped += int64(len(u.result.Rules.Dropped))
	i.counts.refusedRules += int64(len(u.result.Rules.Refused))
	i.counts.pushers += int64(u.result.Pushers.Stored)
	i.counts.refusedPushers += int64(len(u.result.Pushers.Refused))
	if u.result.Pushers.Outcome == module.AlreadyThere {
		i.counts.pushersWereLeft += int64(len(u.from.Pushers))
	}
	for _, refused := range u.result.Rules.Refused {
		i.list(u, "rule "+string(refused.Kind)+"/"+refused.ID, refused.Err)
	}
	for _, refused := range u.result.Pushers.Refused {
		i.list(u, "pusher "+refused.AppID+" "+string(refused.Key), refused.Err)
	}
}

func (i *userImport) list(u importedUser, what string, why error) {
	fmt.Fprintf(i.out, "refused\tline %d\t%s\t%s\t%s\n",
		u.number, printable(string(u.user)), printable(shorten(what)), printable(fault.Details(why)))
}

// shorten cuts what another server let users choose, however long it is.
func shorten(text string) string {
	const most = 200
	if len(text) <= most {
		return text
	}
	return text[:most] + "..."
}

// report tells what was done, or would be.
func (i *userImport) report() {
	imported := "imported"
	if i.mode == module.DryRunImport {
		imported = "would be imported"
	}
	n := i.counts
	fmt.Fprintf(i.out, "users: %d %s, %d are there, %d refused\n", n.imported, imported, n.there, n.refused)
	fmt.Fprintf(i.out, "rules of their own: %d %s, %d refused; default rules that there are not here: %d\n", n.rules, imported, n.refusedRules, n.dropped)
	fmt.Fprintf(i.out, "pushers: %d %s, %d refused, %d left since the user has pushers\n", n.pushers, imported, n.refusedPushers, n.pushersWereLeft)
}
