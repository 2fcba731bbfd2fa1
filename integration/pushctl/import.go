package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/pusherstore"
)

func importCommand() command {
	return command{
		name: "import", args: "FILE",
		summary: "brings back what export has copied",
		about: "Reads a file of export as a whole, and changes nothing unless it is as it was written. Then it stores\n" +
			"each value where nothing is stored. What is there already and the same is left alone, so that the same\n" +
			"call goes on after Ctrl-C or an error; what is there and differs is kept and listed, unless -overwrite\n" +
			"is given (exit status 1 says that there was such). Versions go up: requests that were under way for\n" +
			"the former values have no effect, and syncs notice.",
		flags: func(o *options, flags *flag.FlagSet) {
			o.addWalk(flags)
			o.addDurability(flags)
			flags.BoolVar(&o.overwrite, "overwrite", false, "replace what is stored and differs")
		},
		run: func(ctx context.Context, c *call) error { return c.importFile(ctx) },
	}
}

// importing stores the records of an archive.
type importing struct {
	*call
	pace     *pace
	progress *progress
	twice    map[uint64]int64 // the last line of each value that is there more than once
	seed     maphash.Seed

	stored, same, kept, replaced atomic.Int64
}

// errGrown is for a file that somebody writes to.
var errGrown = errors.New("the file has changed while it was read")

func (c *call) importFile(ctx context.Context) error {
	file, err := os.Open(c.args[0])
	if err != nil {
		return err
	}
	defer file.Close()
	i := &importing{call: c, pace: &pace{rate: c.rate}, progress: c.newProgress("imported", "values"), seed: maphash.MakeSeed()}
	records, err := i.verify(ctx, file)
	if ctx.Err() != nil {
		return &interruptedError{"nothing was changed"}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(c.notes, "%s is whole: %d values\n", c.args[0], records)
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	i.progress.start(records)
	err = i.storeAll(ctx, file, records)
	i.progress.stop()
	fmt.Fprintf(c.out, "%d values stored, %d were there and the same, %d replaced, %d differ and were kept\n",
		i.stored.Load(), i.same.Load(), i.replaced.Load(), i.kept.Load())
	switch {
	case ctx.Err() != nil:
		return &interruptedError{"the same call goes on, and leaves alone what it has stored"}
	case err != nil:
		return fmt.Errorf("%w (the same call goes on, and leaves alone what it has stored)", err)
	case i.kept.Load() > 0:
		return errFaults
	}
	return nil
}

// verify reads the whole archive, and notes which values are there more than
// once, as happens to keys that a SCAN returns twice: the last one counts.
func (i *importing) verify(ctx context.Context, file io.Reader) (records int64, err error) {
	var marks []uint64
	records, err = readArchive(file, func(_ int64, r record) error {
		marks = append(marks, i.mark(r))
		return ctx.Err()
	})
	if err != nil {
		return 0, err
	}
	ordered := slices.Sorted(slices.Values(marks))
	i.twice = map[uint64]int64{}
	for n := 1; n < len(ordered); n++ {
		if ordered[n] == ordered[n-1] {
			i.twice[ordered[n]] = 0
		}
	}
	for n, mark := range marks {
		if _, found := i.twice[mark]; found {
			i.twice[mark] = int64(n)
		}
	}
	return records, nil
}

// mark is a hash of what a record is about.
func (i *importing) mark(r record) uint64 {
	kind := "p"
	if r.event != nil {
		kind = "e"
	}
	return maphash.String(i.seed, kind+string(r.user))
}

// importBatch is how many records are held at a time.
const importBatch = 512

// storeAll stores the records of an archive that was read before.
func (i *importing) storeAll(ctx context.Context, file io.Reader, records int64) error {
	batch := make([]record, 0, importBatch)
	flush := func() error {
		err := i.storeBatch(ctx, batch)
		i.progress.add(len(batch))
		batch = batch[:0]
		return err
	}
	n := int64(-1)
	again, err := readArchive(file, func(_ int64, r record) error {
		n++
		if last, found := i.twice[i.mark(r)]; found && last != n {
			return nil
		}
		if err := i.pace.wait(ctx, 1); err != nil {
			return err
		}
		if batch = append(batch, r); len(batch) < i.pace.page(importBatch) {
			return nil
		}
		return flush()
	})
	if err == nil && again != records {
		err = errGrown
	}
	if err != nil {
		return err
	}
	return flush()
}

// storeLimit bounds how long a record may take.
const storeLimit = 30 * time.Second

// seen is a record with what was stored at a look before.
type seen struct {
	record
	before value
	claims map[pusher.Digest]string
}

// storeBatch stores records. What is stored is read in one go, so that those
// that are there already cost little.
func (i *importing) storeBatch(ctx context.Context, batch []record) error {
	reading, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	all := make([]seen, len(batch))
	var events, hashes []string
	var digests []pusher.Digest
	for _, r := range batch {
		if r.event != nil {
			events = append(events, i.keys.Rules(r.user))
			continue
		}
		hashes = append(hashes, i.keys.Pushers(r.user))
		h := pusherstore.ReadHash(r.fields)
		for _, p := range h.Pushers.All() {
			digests = append(digests, p.Digest())
		}
	}
	claims, err := i.loadClaims(reading, digests)
	if err != nil {
		return err
	}
	texts, fields := readValues(reading, i.client, events, hashes)
	for n, r := range batch {
		all[n] = seen{record: r, claims: claims}
		if r.event != nil {
			all[n].before, texts = texts[0], texts[1:]
		} else {
			all[n].before, fields = fields[0], fields[1:]
		}
	}
	return atATime(ctx, workers, all, i.store)
}

// store stores a record.
func (i *importing) store(ctx context.Context, s seen) error {
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	store := i.storePushers
	if s.event != nil {
		store = i.storeEvent
	}
	if err := store(ctx, s); err != nil {
		return fmt.Errorf("%s: %w", printable(string(s.user)), err)
	}
	return nil
}

// maxTries bounds how often a value that hosts change meanwhile is looked at.
const maxTries = 10

// errBusy is for a value that was changed by others all the time.
var errBusy = errors.New("it is changed all the time: run it again")

func (i *importing) storeEvent(ctx context.Context, s seen) error {
	text, err := s.before.text, s.before.err
	for range maxTries {
		var old *string
		switch {
		case errors.Is(err, redis.Nil):
		case err != nil:
			return err
		case i.events.Same(text, *s.event):
			i.same.Add(1)
			return nil
		case !i.overwrite:
			return i.keep(s.record, "push rules")
		default:
			old = &text
		}
		done, failed := i.rules.Replace(ctx, s.user, old, *s.event)
		if failed != nil {
			return failed
		}
		if done {
			i.countStored(old != nil)
			return nil
		}
		text, err = i.client.Get(ctx, i.keys.Rules(s.user)).Result()
	}
	return errBusy
}

// storePushers stores pushers, and then their claims: where somebody has claimed
// a pushkey since, it is settled by the numbers of the claims.
func (i *importing) storePushers(ctx context.Context, s seen) error {
	old, err := s.before.fields, s.before.err
	for range maxTries {
		if err != nil {
			return err
		}
		h := pusherstore.ReadHash(old)
		isThere := h.Pushers.Len()+len(h.Unreadable) > 0
		switch {
		case isThere && pusherstore.SameFields(old, s.fields):
			i.same.Add(1)
			return i.claim(ctx, s.record, s.claims)
		case isThere && !i.overwrite:
			return i.keep(s.record, "pushers")
		}
		done, failed := i.pushers.Replace(ctx, s.user, old, s.fields)
		if failed != nil {
			return failed
		}
		if done {
			i.countStored(isThere)
			return i.claim(ctx, s.record, nil)
		}
		old, err = i.client.HGetAll(ctx, i.keys.Pushers(s.user)).Result()
	}
	return errBusy
}

// claim has the index know of the pushers of a record, unless claims that were
// read when the pushers were stored have them.
func (i *importing) claim(ctx context.Context, r record, known map[pusher.Digest]string) error {
	h := pusherstore.ReadHash(r.fields)
	for _, p := range h.Pushers.All() {
		claims, _ := pusherstore.ReadClaims(known[p.Digest()]) // what cannot be read has none
		if slices.Contains(claims.Owners(), pusher.Owner{User: r.user, Claim: p.Claim.Number}) {
			continue
		}
		err := error(module.ErrClaimTaken)
		if p.Claim.Number > 0 {
			err = module.RestoreClaim(ctx, i.index, p.Digest(), pusher.Owner{User: r.user, Claim: p.Claim.Number})
		}
		if errors.Is(err, module.ErrClaimTaken) && len(h.Unreadable) == 0 {
			err = module.GiveClaim(ctx, i.pushers, i.index, r.user, p)
		}
		if err != nil && fault.KindOf(err) != fault.Database {
			return err
		}
	}
	return nil
}

func (i *importing) countStored(replaced bool) {
	if replaced {
		i.replaced.Add(1)
	} else {
		i.stored.Add(1)
	}
}

// keep leaves a value that differs as it is.
func (i *importing) keep(r record, what string) error {
	i.kept.Add(1)
	_, err := fmt.Fprintf(i.out, "kept\t%s\t%s\n", what, printable(string(r.user)))
	return err
}
