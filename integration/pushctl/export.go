package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module/stored"
)

var exportCommand = command{
	name: "export", args: "FILE",
	summary: "copies all push rules and pushers to a file",
	about: "Copies the push rules and pushers of all users to a gzip file, while hosts run. Each line has one value\n" +
		"as JSON. The file holds pushkeys, so only its owner can read it. Until it is complete, its name is\n" +
		"FILE.part. FILE - is stdout.",
	flags: (*flags).addRate,
	run:   (*call).export,
}

// export writes an archive to a file, or to stdout for "-".
func (c *call) export(ctx context.Context) error {
	name := c.args[0]
	if name == "-" {
		a, err := newArchive(c.out, c.backend)
		if err != nil {
			return err
		}
		return c.exportTo(ctx, a)
	}
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, fmt.Errorf("%s exists: name another file", name))
	}
	part := name + ".part"
	a, err := createArchive(part, c.backend)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists: another export writes it, or was killed: then remove it", part)
	}
	if err != nil {
		return err
	}
	err = c.exportTo(ctx, a)
	if err != nil && !errors.Is(err, errProblems) {
		return errors.Join(err, a.file.Close(), os.Remove(part))
	}
	return errors.Join(os.Rename(part, name), err)
}

// exportTo writes the archive. It returns errProblems if it left out keys.
func (c *call) exportTo(ctx context.Context, a *archive) error {
	var mu sync.Mutex
	skipped, others := 0, 0
	err := c.newScanner("read").scan(ctx, func(ctx context.Context, node *redis.Client, keys []string) error {
		values, err := c.readAnywhere(ctx, node, keys, stored.RulesKey, stored.PushersKey)
		if err != nil {
			return err
		}
		if err := c.dropTaken(ctx, values); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		records, left := recordsOf(values)
		skipped += left
		for _, r := range records {
			if r.otherVersion() != nil {
				others++
			}
		}
		return a.add(records...)
	})
	if err == nil && a.records+int64(skipped) == 0 {
		err = c.noKeys()
	}
	if err == nil {
		err = a.end()
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(c.notes, "exported %d values\n", a.records)
	if others > 0 {
		fmt.Fprintf(c.notes, "%d values are of another version, and only its import takes the file\n", others)
	}
	if skipped > 0 {
		fmt.Fprintf(c.notes, "skipped %d keys of the wrong type, or on a node without their slot: check -list names them\n", skipped)
		return errProblems
	}
	return nil
}

// dropTaken removes pushers that other users have taken from values: an archive has no entries of pushkeys, so an import
// would make them visible.
func (c *call) dropTaken(ctx context.Context, values []value) error {
	hashes := make([]stored.Hash, len(values))
	for i, v := range values {
		hashes[i] = stored.ReadHash(v.fields)
	}
	entries, err := c.readEntries(ctx, hashes...)
	for i, v := range values {
		for _, p := range hashes[i].Pushers.All() {
			if entry := entries[p.Digest()]; !entry.Shows(v.User, p.Claim) {
				delete(v.fields, p.Field())
			}
		}
	}
	return err
}

// recordsOf converts values to records, and returns the number of keys that it leaves out: of the wrong type, or on a
// master that does not serve them.
func recordsOf(values []value) (records []record, others int) {
	for _, v := range values {
		switch {
		case v.state == isOtherType || v.state == isElsewhere:
			others++
		case v.state != isStored:
		case v.Kind == stored.RulesKey:
			records = append(records, record{user: v.User, event: &v.text})
		default:
			records = append(records, record{user: v.User, fields: v.fields})
		}
	}
	return records, others
}
