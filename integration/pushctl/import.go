package main

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
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
		setup: func(f *flags) runner {
			f.addDurability()
			p, i := f.pace(), &importing{seed: maphash.MakeSeed(), last: map[uint64]int64{}, counts: map[importOutcome]int{}}
			f.BoolVar(&i.overwrite, "overwrite", false, "replace what is stored and differs")
			return func(ctx context.Context, c *call) error {
				i.call, i.pace = c, p
				return i.run(ctx, c.args[0])
			}
		},
	}
}

// importing stores the records of an archive.
type importing struct {
	*call
	overwrite bool
	pace      *pace
	seed      maphash.Seed
	last      map[uint64]int64 // the last line of each value

	mu     sync.Mutex
	counts map[importOutcome]int
}

// importOutcome is what became of a record.
type importOutcome int

const (
	storedNew importOutcome = iota
	wasSame
	replacedOther
	keptAsIs // what is stored differs
)

// errGrown is for a file that somebody writes to.
var errGrown = errors.New("the file has changed while it was read")

func (i *importing) run(ctx context.Context, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	// A SCAN may return a key twice: the last line counts.
	records, err := readArchive(file, func(line int64, r record) error {
		i.last[i.mark(r)] = line
		return ctx.Err()
	})
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(i.notes, "%s is whole: %d values\n", name, records)
	err = i.storeAll(ctx, file, records)
	fmt.Fprintf(i.out, "%d values stored, %d were there and the same, %d replaced, %d differ and were kept\n",
		i.counts[storedNew], i.counts[wasSame], i.counts[replacedOther], i.counts[keptAsIs])
	switch {
	case err != nil:
		return fmt.Errorf("%w (the same call goes on, and leaves alone what it has stored)", err)
	case i.counts[keptAsIs] > 0:
		return errProblems
	}
	return nil
}

// mark is a hash of what a record is about.
func (i *importing) mark(r record) uint64 { return maphash.String(i.seed, r.key(i.keys)) }

// importBatch is how many records are held at a time.
const importBatch = 512

// storeAll stores the records of an archive that was read before.
func (i *importing) storeAll(ctx context.Context, file io.Reader, records int64) error {
	batch, limiter, bar := make([]record, 0, importBatch), i.pace.limiter(), i.pace.bar("imported", records)
	flush := func() error {
		err := i.storeBatch(ctx, batch)
		_ = bar.Add(len(batch)) // it is only shown
		batch = batch[:0]
		return err
	}
	again, err := readArchive(file, func(line int64, r record) error {
		if line != i.last[i.mark(r)] {
			return nil
		}
		if err := limiter.Wait(ctx); err != nil {
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
	if err == nil {
		err = flush()
	}
	return errors.Join(err, bar.Exit())
}

// storeLimit bounds how long a record may take.
const storeLimit = 30 * time.Second

// importJob is a record with what was stored before.
type importJob struct {
	record
	before value
	claims map[pusher.Digest]string // to the pushkeys of all records
}

// storeBatch stores records. It reads their keys in one go, so that records that are
// stored already cost little.
func (i *importing) storeBatch(ctx context.Context, batch []record) error {
	jobs, err := i.prepare(ctx, batch)
	if err != nil {
		return err
	}
	return parallel(ctx, jobs, i.store)
}

func (i *importing) prepare(ctx context.Context, batch []record) ([]importJob, error) {
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	names := make([]string, len(batch))
	var digests []pusher.Digest
	for n, r := range batch {
		names[n] = r.key(i.keys)
		h := stored.ReadHash(r.fields)
		for _, p := range h.Pushers.All() {
			digests = append(digests, p.Digest())
		}
	}
	claims, err := i.readClaims(ctx, digests)
	if err != nil {
		return nil, err
	}
	values, err := i.readValues(ctx, i.client, names)
	if err != nil {
		return nil, err
	}
	jobs := make([]importJob, len(batch))
	for n, r := range batch {
		jobs[n] = importJob{r, values[n], claims}
	}
	return jobs, nil
}

// store stores a record, unless something is stored that is to be kept.
func (i *importing) store(ctx context.Context, j importJob) error {
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	outcome, err := i.tryStore(ctx, j)
	if err == nil && outcome != keptAsIs && j.event == nil {
		if outcome != wasSame {
			j.claims = nil // somebody may have claimed a pushkey since
		}
		err = i.claim(ctx, j)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", printable(string(j.user)), err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.counts[outcome]++
	if outcome == keptAsIs {
		fmt.Fprintf(i.out, "kept\t%s\t%s\n", j.what(), printable(string(j.user)))
	}
	return nil
}

// maxTries bounds how often a value that hosts change meanwhile is tried.
const maxTries = 10

// errBusy is for a value that was changed by others all the time.
var errBusy = errors.New("it is changed all the time: run it again")

func (i *importing) tryStore(ctx context.Context, j importJob) (importOutcome, error) {
	for range maxTries {
		if j.before.state == isOtherType {
			return 0, errors.New("a key of the user is of another type: look at it by hand")
		}
		outcome := storedNew
		if j.isThere() {
			outcome = replacedOther
			switch {
			case j.isSame():
				return wasSame, nil
			case !i.overwrite:
				return keptAsIs, nil
			}
		}
		if done, err := i.replace(ctx, j); err != nil || done {
			return outcome, err
		}
		values, err := i.readValues(ctx, i.client, []string{j.key(i.keys)})
		if err != nil {
			return 0, err
		}
		j.before = values[0]
	}
	return 0, errBusy
}

// isThere reports whether Redis has a value. A hash that has only its revision is none.
func (j importJob) isThere() bool {
	if j.event != nil {
		return j.before.state == isStored
	}
	h := stored.ReadHash(j.before.fields)
	return h.Pushers.Len()+len(h.Unreadable) > 0
}

// isSame reports whether Redis has the record, with any revision. Events that cannot be
// read are the same if their bytes are.
func (j importJob) isSame() bool {
	if j.event == nil {
		return maps.Equal(stored.HashFields(j.before.fields), stored.HashFields(j.fields))
	}
	if j.before.text == *j.event {
		return true
	}
	before, beforeErr := stored.ReadEvent(j.before.text)
	event, err := stored.ReadEvent(*j.event)
	return beforeErr == nil && err == nil && before.Text(stored.Revision{}) == event.Text(stored.Revision{})
}

// replace stores the record in the place of what was read; done is false if
// something else is stored.
func (i *importing) replace(ctx context.Context, j importJob) (done bool, err error) {
	switch {
	case j.event == nil:
		return i.pushers.Replace(ctx, j.user, j.before.fields, j.fields)
	case j.before.state == isStored:
		return i.rules.Replace(ctx, j.user, &j.before.text, *j.event)
	}
	return i.rules.Replace(ctx, j.user, nil, *j.event)
}

// claim has the index know the pushers of a record, unless claims that were read
// when the pushers were stored have them. Where somebody has claimed a pushkey
// since, it is reconciled by the numbers of the claims.
func (i *importing) claim(ctx context.Context, j importJob) error {
	h := stored.ReadHash(j.fields)
	for _, p := range h.Pushers.All() {
		entry, _ := stored.ReadEntry(j.claims[p.Digest()]) // what cannot be read has none
		if slices.Contains(entry.Claims.Owners(), pusher.Owner{User: j.user, Claim: p.Claim.Number}) {
			continue
		}
		if err := i.repairs.Record(ctx, j.user, p); err != nil && !isDamaged(err) {
			return err
		}
	}
	return nil
}
