package main

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"os"
	"sync"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/service"
	"github.com/pushfx/pushfx/module/stored"
)

var importCommand = command{
	name: "import", args: "FILE",
	summary: "stores an export's data",
	about: "Reads the whole file, and changes nothing if it is damaged. Then it stores missing values and skips\n" +
		"equal ones, so the same command continues after an interruption. Values that differ are kept and\n" +
		"listed (exit status 1), or replaced with -overwrite. Unreadable values stay in the file and are listed,\n" +
		"too. Versions grow, so that requests in progress do not change the new values, and syncs notice them.",
	flags: func(f *flags) {
		f.addDurability()
		f.addRate()
		f.addJSON()
		f.BoolVar(&f.overwrite, "overwrite", false, "replace values that differ")
	},
	run: (*call).importFile,
}

type importer struct {
	*call
	seed maphash.Seed
	last map[uint64]int64 // line number of the last record of each key, by the key's hash
	bad  map[int64]bool   // line numbers of unreadable events

	mu     sync.Mutex
	counts map[importOutcome]int
}

type importOutcome int

const (
	created importOutcome = iota
	unchanged
	replaced
	kept       // Redis has another value, which stays
	unreadable // the value in the file, or a part of it
)

var errFileChanged = errors.New("the file changed during the import")

func (c *call) importFile(ctx context.Context) error {
	i, name := &importer{call: c, seed: maphash.MakeSeed(), last: map[uint64]int64{}, bad: map[int64]bool{}, counts: map[importOutcome]int{}}, c.args[0]
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	// SCAN may have returned a key twice: its last record counts.
	records, err := readArchive(file, func(line int64, r record) error {
		i.last[i.keyHash(r)] = line
		err := r.check()
		if fault.IsOtherVersion(err) {
			return fmt.Errorf("line %d has %w: import it with that version", line, err)
		}
		if err != nil {
			i.bad[line] = true
		}
		return ctx.Err()
	})
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(i.notes, "%s is complete: %d values\n", name, records)
	err = i.storeAll(ctx, file, records)
	report := importReport{i.counts[created], i.counts[unchanged], i.counts[replaced], i.counts[kept], i.counts[unreadable]}
	result := i.result(report, report.write, report.Kept+report.Unreadable > 0)
	if err != nil {
		return fmt.Errorf("%w (run the same command again to continue)", err)
	}
	return result
}

type importReport struct {
	Stored     int `json:"stored"`
	Unchanged  int `json:"unchanged"`
	Replaced   int `json:"replaced"`
	Kept       int `json:"kept"`
	Unreadable int `json:"unreadable"`
}

func (r importReport) write(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%d values stored, %d unchanged, %d replaced, %d kept that differ, %d left in the file that cannot be read\n",
		r.Stored, r.Unchanged, r.Replaced, r.Kept, r.Unreadable)
	return err
}

func (i *importer) keyHash(r record) uint64 { return maphash.String(i.seed, r.key(i.keys)) }

// importBatch is the number of records in memory.
const importBatch = 512

// storeAll reads the archive again and stores its records.
func (i *importer) storeAll(ctx context.Context, file io.Reader, records int64) error {
	batch, limiter, bar := make([]record, 0, importBatch), i.rate.limiter(), newBar("imported", records)
	flush := func() error {
		err := i.storeBatch(ctx, batch)
		_ = bar.Add(len(batch))
		batch = batch[:0]
		return err
	}
	read, err := readArchive(file, func(line int64, r record) error {
		if line != i.last[i.keyHash(r)] {
			return nil
		}
		r, hasUnreadable := r.withoutUnreadable()
		if i.bad[line] || hasUnreadable {
			i.count(unreadable, r)
		}
		if i.bad[line] || hasUnreadable && len(stored.HashFields(r.fields)) == 0 {
			return nil
		}
		if err := limiter.Wait(ctx); err != nil {
			return err
		}
		if batch = append(batch, r); len(batch) < i.rate.page(importBatch) {
			return nil
		}
		return flush()
	})
	if err == nil && read != records {
		err = errFileChanged
	}
	if err == nil {
		err = flush()
	}
	return errors.Join(err, bar.Exit())
}

// importJob is a record with the stored value.
type importJob struct {
	record
	before value
}

// storeBatch stores records. It reads all their keys in one pipeline, so that unchanged records cost little.
func (i *importer) storeBatch(ctx context.Context, batch []record) error {
	names := make([]string, len(batch))
	for n, r := range batch {
		names[n] = r.key(i.keys)
	}
	values, err := i.readValues(ctx, i.client, names)
	if err != nil {
		return err
	}
	jobs := make([]importJob, len(batch))
	for n, r := range batch {
		jobs[n] = importJob{r, values[n]}
	}
	return parallel(ctx, jobs, i.store)
}

// store stores a record, unless Redis has another value and the flags keep it.
func (i *importer) store(ctx context.Context, j importJob) error {
	outcome, err := i.tryStore(ctx, j)
	if err == nil && outcome != kept && j.event == nil {
		err = i.recordPushers(ctx, j)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", printable(string(j.user)), err)
	}
	i.count(outcome, j.record)
	return nil
}

// count counts an outcome, and lists a value that is not as in the file.
func (i *importer) count(outcome importOutcome, r record) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.counts[outcome]++
	if name := map[importOutcome]string{kept: "kept", unreadable: "unreadable"}[outcome]; name != "" {
		listed := listedOutcome{Outcome: name, Value: r.kindName(), Name: string(r.user)}
		_ = i.writeLine(listed, name, r.kindName(), string(r.user)) // else the report fails, too
	}
}

// listedOutcome is a value that is not as in the file, or a problem that repair has examined.
type listedOutcome struct {
	Outcome string `json:"outcome"`
	Value   string `json:"value,omitempty"`
	Problem string `json:"problem,omitempty"`
	Name    string `json:"name"`
	Detail  string `json:"detail,omitempty"`
}

// maxTries is the maximum number of tries to store a value that hosts keep changing.
const maxTries = 10

var (
	errBusy      = errors.New("hosts keep changing the value: run it again")
	errOtherType = errors.New("a key of the user has the wrong type: look at it by hand")
)

func (i *importer) tryStore(ctx context.Context, j importJob) (importOutcome, error) {
	for range maxTries {
		if j.before.state == isOtherType {
			return 0, errOtherType
		}
		outcome := created
		if j.exists() {
			outcome = replaced
			switch {
			case j.isEqual():
				return unchanged, nil
			case !i.overwrite || j.isOfOtherVersion():
				return kept, nil
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

// exists reports whether Redis has a value. A hash with only a revision counts as missing.
func (j importJob) exists() bool {
	if j.event != nil {
		return j.before.state == isStored
	}
	h := stored.ReadHash(j.before.fields)
	return h.Pushers.Len() > 0 || h.Err != nil
}

// isOfOtherVersion reports whether another version of the module stored the value in Redis.
func (j importJob) isOfOtherVersion() bool {
	records, _ := recordsOf([]value{j.before})
	return len(records) > 0 && records[0].otherVersion() != nil
}

// isEqual reports whether Redis has the same value, with any revision. It compares unreadable events byte for byte.
func (j importJob) isEqual() bool {
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

// replace stores the record. Done is false if the stored value has changed since it was read.
func (i *importer) replace(ctx context.Context, j importJob) (done bool, err error) {
	switch {
	case j.event == nil:
		return i.pushers.Replace(ctx, j.user, j.before.fields, j.fields)
	case j.before.state == isStored:
		return i.rules.Replace(ctx, j.user, &j.before.text, *j.event)
	}
	return i.rules.Replace(ctx, j.user, nil, *j.event)
}

// recordPushers records the record's pushers in the index, those that must be there.
func (i *importer) recordPushers(ctx context.Context, j importJob) error {
	h := stored.ReadHash(j.fields)
	for _, p := range h.Pushers.All() {
		if !service.IsMissing(j.user, p, pusher.Entry{}) {
			continue
		}
		if err := i.repairs.Record(ctx, j.user, p); err != nil && !isUnreadable(err) {
			return err
		}
	}
	return nil
}
