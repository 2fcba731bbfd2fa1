package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/stored"
)

func importCommand() command {
	return command{
		name: "import", args: "FILE",
		summary: "brings back what export has copied; with -from, users of another server",
		about: "Reads a file of export as a whole, and changes nothing unless it is as it was written. Then it stores\n" +
			"each value where nothing is stored. What is there already and the same is left alone, so that the same\n" +
			"call goes on after Ctrl-C or an error; what is there and differs is kept and listed, unless -overwrite\n" +
			"is given (exit status 1 says that there was such). Versions go up: requests that were under way for\n" +
			"the former values have no effect, and syncs notice.\n\n" +
			"With -from FILE instead of FILE, it brings in users from a server that did without the module. A line\n" +
			"of the file is a JSON object:\n\n" +
			"  {\"user_id\":\"@NAME:SERVER\",\"push_rules\":{\"global\":{...}},\"pushers\":[{...,\"device_id\":\"...\"}]}\n\n" +
			"with the content of m.push_rules, and the pushers as clients see them with the device of each. A user\n" +
			"who has push rules here is left alone, so that the same call goes on after Ctrl-C or an error. What no\n" +
			"client may store is refused and listed (exit status 1), the rest of the user is imported.",
		flags: func(o *options, flags *flag.FlagSet) {
			o.addScan(flags)
			o.addDurability(flags)
			o.addDefaultRules(flags)
			flags.StringVar(&o.from, "from", "", "`FILE` with users of another server; - is stdin. -rate counts users then")
			flags.BoolVar(&o.dryRun, "dry-run", false, "with -from: tell what would be imported, and change nothing")
			flags.BoolVar(&o.allowHTTP, "allow-http", false, "with -from: pushers may have plain http URLs, as with the hosts'\nPusherPolicy.AllowHTTP")
			flags.BoolVar(&o.email, "email", false, "with -from: the hosts send mail (PusherPolicy.Email), and the former server has\nconfirmed whose the addresses of pushers of kind email are")
			flags.StringVar(&o.allowed, "allowed-prefixes", "",
				"with -from: `PREFIXES` of addresses that pushers may have though they are not public,\nseparated by commas, as the hosts' PusherPolicy.AllowedPrefixes")
			flags.BoolVar(&o.overwrite, "overwrite", false, "replace what is stored and differs")
		},
		run: func(ctx context.Context, c *call) error {
			switch {
			case c.from != "":
				return c.importUsers(ctx)
			case c.dryRun:
				return errors.New("-dry-run is for -from")
			}
			return c.importFile(ctx)
		},
	}
}

// importing stores the records of an archive.
type importing struct {
	*call
	pace     *pace
	progress *progress
	twice    map[uint64]int64 // the last line of each value that is there more than once
	seed     maphash.Seed
	counts   [keptAsIs + 1]int64
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
		i.counts[storedNew], i.counts[wasSame], i.counts[replacedOther], i.counts[keptAsIs])
	switch {
	case ctx.Err() != nil:
		return &interruptedError{"the same call goes on, and leaves alone what it has stored"}
	case err != nil:
		return fmt.Errorf("%w (the same call goes on, and leaves alone what it has stored)", err)
	case i.counts[keptAsIs] > 0:
		return errProblems
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

// importJob is a record with what was stored before, and what became of it.
type importJob struct {
	record
	before  value
	claims  map[pusher.Digest]string // to the pushkeys of all records
	outcome importOutcome
}

// storeBatch stores records. What is stored is read in one go, so that those
// that are there already cost little.
func (i *importing) storeBatch(ctx context.Context, batch []record) error {
	jobs, err := i.prepare(ctx, batch)
	if err != nil {
		return err
	}
	done, err := parallel(ctx, jobs, i.store)
	for _, j := range done {
		i.counts[j.outcome]++
		if j.outcome == keptAsIs {
			fmt.Fprintf(i.out, "kept\t%s\t%s\n", j.what(), printable(string(j.user)))
		}
	}
	return err
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
		jobs[n] = importJob{record: r, before: values[n], claims: claims}
	}
	return jobs, nil
}

// maxTries bounds how often a value that hosts change meanwhile is tried.
const maxTries = 10

// errBusy is for a value that was changed by others all the time.
var errBusy = errors.New("it is changed all the time: run it again")

// store stores a record, unless something is stored that is to be kept.
func (i *importing) store(ctx context.Context, j importJob) (importJob, error) {
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	var err error
	j.outcome, err = i.tryStore(ctx, j)
	if err == nil && j.outcome != keptAsIs && j.event == nil {
		if j.outcome != wasSame {
			j.claims = nil // somebody may have claimed a pushkey since
		}
		err = i.claim(ctx, j)
	}
	if err != nil {
		return j, fmt.Errorf("%s: %w", printable(string(j.user)), err)
	}
	return j, nil
}

func (i *importing) tryStore(ctx context.Context, j importJob) (importOutcome, error) {
	for range maxTries {
		if j.before.state == isOtherType {
			return 0, errors.New("a key of the user is of another type: look at it by hand")
		}
		isThere := j.isThere()
		switch {
		case isThere && i.isSame(j):
			return wasSame, nil
		case isThere && !i.overwrite:
			return keptAsIs, nil
		}
		done, err := i.replace(ctx, j)
		switch {
		case err != nil:
			return 0, err
		case done && isThere:
			return replacedOther, nil
		case done:
			return storedNew, nil
		}
		values, err := i.readValues(ctx, i.client, []string{j.key(i.keys)})
		if err != nil {
			return 0, err
		}
		j.before = values[0]
	}
	return 0, errBusy
}

// isThere reports whether something is stored. A hash that was left for its revision
// is not.
func (j importJob) isThere() bool {
	if j.event != nil {
		return j.before.state == isStored
	}
	h := stored.ReadHash(j.before.fields)
	return h.Pushers.Len()+len(h.Unreadable) > 0
}

// isSame reports whether the record is what is stored.
func (i *importing) isSame(j importJob) bool {
	if j.event != nil {
		return i.isSameEvent(j.before.text, *j.event)
	}
	return maps.Equal(stored.HashFields(j.before.fields), stored.HashFields(j.fields))
}

// isSameEvent reports whether two events are the same beside their revisions.
// Those that cannot be read are, if they are equal.
func (i *importing) isSameEvent(a, b string) bool {
	if a == b {
		return true
	}
	first, firstErr := stored.ReadEvent(a)
	second, secondErr := stored.ReadEvent(b)
	return firstErr == nil && secondErr == nil && first.Text(stored.Revision{}) == second.Text(stored.Revision{})
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
// since, it is settled by the numbers of the claims.
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
