package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/stored"
)

func exportCommand() command {
	return command{
		name: "export", args: "FILE",
		summary: "copies all that is stored into a file",
		about: "Copies the push rules and pushers of all users into a file, a line of JSON for each value, while\n" +
			"hosts may go on. Each value is as it was at one moment. The file ends with the number of lines and a\n" +
			"SHA-256, and holds pushkeys: it is for its owner's eyes. Until it is whole it is FILE.part; after\n" +
			"Ctrl-C or an error, the same call goes on where it stopped. FILE - is stdout.",
		flags: func(o *options, flags *flag.FlagSet) { o.addWalk(flags) },
		run:   func(ctx context.Context, c *call) error { return c.export(ctx) },
	}
}

// exporting writes all that is stored into an archive.
type exporting struct {
	*call
	archive *archiveWriter
	file    *os.File // nil for stdout
	place   *position
	state   exportState
}

// exportState is how far an export is.
type exportState struct {
	Archive archiveState `json:"archive"`
	LeftOut int64        `json:"left_out"` // keys of another type
}

func (c *call) export(ctx context.Context) (err error) {
	e := &exporting{call: c}
	name := c.args[0]
	if name == "-" {
		if e.archive, err = newArchive(c.out, c.backend); err != nil {
			return err
		}
		e.place, err = newPosition("", "", &e.state)
	} else {
		err = e.open(name)
	}
	if err == nil {
		err = e.run(ctx)
	}
	if e.file == nil {
		return err
	}
	return errors.Join(err, e.file.Close())
}

// open opens the file, at its start or where it was left.
func (e *exporting) open(name string) (err error) {
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, fmt.Errorf("%s is there already: name another file", name))
	}
	if e.place, err = newPosition(name+".state", e.stateName("export"), &e.state); err != nil {
		return err
	}
	if e.file, err = os.OpenFile(name+".part", os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	if e.place.isNew() {
		if err := e.file.Truncate(0); err != nil {
			return err
		}
		e.archive, err = newArchive(e.file, e.backend)
		return err
	}
	if size, err := e.file.Seek(0, io.SeekEnd); err != nil || size < e.state.Archive.Bytes {
		return errors.Join(err, fmt.Errorf("%s.part is shorter than %s.state says: remove both and begin anew", name, name))
	}
	if err := e.file.Truncate(e.state.Archive.Bytes); err != nil {
		return err
	}
	if _, err := e.file.Seek(e.state.Archive.Bytes, io.SeekStart); err != nil {
		return err
	}
	e.archive, err = resumeArchive(e.file, e.state.Archive)
	return err
}

func (e *exporting) run(ctx context.Context) error {
	w := &walk{
		backend: e.backend, pace: &pace{rate: e.rate}, progress: e.newProgress("looked at", "keys"),
		position: e.place, look: e.look, settle: e.sync,
	}
	if err := w.run(ctx); err != nil {
		if e.file != nil && isNothingFound(err) {
			err = errors.Join(err, os.Remove(e.file.Name()))
		}
		return err
	}
	if err := e.archive.end(); err != nil {
		return err
	}
	if err := e.finish(); err != nil {
		return err
	}
	fmt.Fprintf(e.notes, "exported %d values, %d bytes\n", e.archive.Records, e.archive.Bytes)
	if e.state.LeftOut > 0 {
		fmt.Fprintf(e.notes, "%d keys were left out, which are of another type: check tells which\n", e.state.LeftOut)
		return errFaults
	}
	return nil
}

// finish gives the file its name.
func (e *exporting) finish() error {
	if e.file == nil {
		return nil
	}
	if err := e.file.Sync(); err != nil {
		return err
	}
	return os.Rename(e.args[0]+".part", e.args[0])
}

// sync has on disk what the position tells of.
func (e *exporting) sync(context.Context) (err error) {
	if e.file == nil {
		return nil
	}
	if err := e.file.Sync(); err != nil {
		return err
	}
	e.state.Archive, err = e.archive.state()
	return err
}

// look reads a page of keys and makes lines of them.
func (e *exporting) look(ctx context.Context, node *redis.Client, keys []string) (done func(context.Context) error, err error) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	records, leftOut, err := e.readRecords(ctx, node, e.sort(keys))
	if err != nil {
		return nil, err
	}
	var lines bytes.Buffer
	for _, r := range records {
		if err := r.appendLine(&lines); err != nil {
			return nil, err
		}
	}
	return func(context.Context) error {
		e.state.LeftOut += leftOut
		return e.archive.write(lines.Bytes(), int64(len(records)))
	}, nil
}

// readRecords reads keys from the node that has them. Those that have moved
// meanwhile are read from where they are.
func (b *backend) readRecords(ctx context.Context, node redis.UniversalClient, keys sortedKeys) (records []record, leftOut int64, err error) {
	var moved sortedKeys
	events, hashes := readValues(ctx, node, keys.events, keys.hashes)
	for _, v := range slices.Concat(events, hashes) {
		switch readOutcome(v.err) {
		case isRead:
			if r := b.recordOf(v); r.event != nil || len(r.fields) > 0 {
				records = append(records, r)
			}
		case isElsewhere:
			if b.keys.Parse(v.key).Kind == stored.RulesKey {
				moved.events = append(moved.events, v.key)
			} else {
				moved.hashes = append(moved.hashes, v.key)
			}
		case isNoValue:
			leftOut++
		case isFailed:
			return nil, 0, fmt.Errorf("read %s: %w", b.nameOf(v.key), v.err)
		}
	}
	if len(moved.events)+len(moved.hashes) == 0 || node == b.client {
		return records, leftOut, nil
	}
	rest, restLeftOut, err := b.readRecords(ctx, b.client, moved)
	return slices.Concat(records, rest), leftOut + restLeftOut, err
}

// recordOf is the record of a value that was read.
func (b *backend) recordOf(v value) record {
	key := b.keys.Parse(v.key)
	if key.Kind == stored.RulesKey {
		return record{user: key.User, event: &v.text}
	}
	return record{user: key.User, fields: v.fields}
}

// outcome is what became of a read.
type outcome int

const (
	isRead outcome = iota
	isGone
	isElsewhere // on another node
	isNoValue   // of the type that it should be
	isFailed
)

func readOutcome(err error) outcome {
	_, isMoved := redis.IsMovedError(err)
	_, isAsk := redis.IsAskError(err)
	switch {
	case err == nil:
		return isRead
	case errors.Is(err, redis.Nil):
		return isGone
	case isMoved || isAsk:
		return isElsewhere
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return isNoValue
	}
	return isFailed
}
