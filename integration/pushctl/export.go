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
		flags: func(o *options, flags *flag.FlagSet) { o.addScan(flags) },
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
	s := e.newScanner("read", e.place)
	s.flush = e.sync
	if err := s.Scan(ctx, e.page); err != nil {
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
		return errProblems
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

// page reads a page of keys and makes lines of them.
func (e *exporting) page(ctx context.Context, node *redis.Client, keys []string) (func(context.Context) error, error) {
	values, err := e.readAnywhere(ctx, node, slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		return e.keys.Parse(key).Kind == stored.ClaimsKey
	}))
	if err != nil {
		return nil, err
	}
	var lines bytes.Buffer
	records, leftOut := recordsOf(values)
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

// recordsOf returns the records of push rules and pushers, and how many keys are
// of another type.
func recordsOf(values []value) (records []record, leftOut int64) {
	for _, v := range values {
		switch {
		case v.state == isOtherType:
			leftOut++
		case v.state != isStored:
		case v.Kind == stored.RulesKey:
			records = append(records, record{user: v.User, event: &v.text})
		default:
			records = append(records, record{user: v.User, fields: v.fields})
		}
	}
	return records, leftOut
}
