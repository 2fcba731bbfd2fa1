package data

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pushfx/pushfx/module/fault"
)

func open(t *testing.T, file string) *DB {
	t.Helper()
	db, err := Open(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestAFileOfAnotherVersionIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ statement, want string }{
		"newer":                {"PRAGMA user_version = 7", "the data has version 7, and this program reads version 2"},
		"of another program":   {"CREATE TABLE users (name TEXT)", "the data has version 0, and this program reads version 2"},
		"new":                  {"SELECT 1", ""},
		"of the same version":  {schema, ""},
		"new, in a new folder": {"", "no such file"},
		"a folder":             {".", " is a folder"},
	} {
		file := filepath.Join(t.TempDir(), "a ?#%.db")
		switch test.statement {
		case "":
			file = filepath.Join(file, "x")
		case ".":
			file = t.TempDir()
		default:
			db, err := sql.Open("sqlite", "file:"+strings.NewReplacer("?", "%3f", "#", "%23", "%", "%25").Replace(file))
			if err == nil {
				_, err = db.ExecContext(t.Context(), test.statement)
			}
			if err := errors.Join(err, db.Close()); err != nil {
				t.Fatal(err)
			}
		}
		db, err := Open(t.Context(), file)
		if err == nil {
			db.Close()
			if _, err := os.Stat(file + "-wal"); err == nil {
				t.Errorf("%s: the log is left, so a connection is open", name)
			}
		}
		if got := fmt.Sprint(err); test.want == "" && err != nil || !strings.Contains(got, test.want) || err != nil && !strings.Contains(got, filepath.Dir(file)) {
			t.Errorf("%s: got %s, want %q", name, got, test.want)
		}
	}
}

// Many hosts start at once on one new file, and write at once.
func TestHostsShareAFile(t *testing.T) {
	t.Parallel()
	const hosts, writes = 8, 50
	file := filepath.Join(t.TempDir(), "demo.db")
	var running sync.WaitGroup
	for host := range hosts {
		running.Go(func() {
			db, err := Open(t.Context(), file)
			if err != nil {
				t.Error(err)
				return
			}
			defer db.Close()
			for n := range writes {
				err := db.Write(t.Context(), func(ctx context.Context, tx *Tx) error {
					rooms, _, err := One(ctx, tx, Value[int], `SELECT COUNT(*) FROM rooms`)
					if err != nil {
						return err
					}
					_, err = tx.ExecContext(ctx, `INSERT INTO rooms (room_id, name) VALUES (?, ?)`, fmt.Sprint(host, " ", n), rooms)
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	numbers, err := All(t.Context(), open(t, file), Value[int], `SELECT CAST(name AS INTEGER) FROM rooms ORDER BY 1`)
	if err != nil || len(numbers) != hosts*writes || numbers[len(numbers)-1] != hosts*writes-1 {
		t.Errorf("got %v, %v", numbers, err)
	}
}

// A full disk and a transaction that fails leave nothing behind, and the next transaction works.
func TestAFailedWriteLeavesNothing(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "demo.db"))
	add := func(id string, then error) error {
		return db.Write(t.Context(), func(ctx context.Context, tx *Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO rooms (room_id) VALUES (?)`, id)
			return errors.Join(err, then)
		})
	}
	refused := fault.New(fault.Forbidden, "refused")
	if err := add("1", refused); !errors.Is(err, refused) || fault.KindOf(err) == fault.Unavailable {
		t.Errorf("refused: got %v", err)
	}
	var pages int
	if err := db.write.QueryRowContext(t.Context(), `PRAGMA page_count`).Scan(&pages); err != nil {
		t.Fatal(err)
	}
	limit := func(pages int) {
		t.Helper()
		if err := db.Exec(t.Context(), fmt.Sprintf(`PRAGMA max_page_count = %d`, pages)); err != nil {
			t.Fatal(err)
		}
	}
	limit(pages)
	large := strings.Repeat("x", 1<<20)
	if err := add(large, nil); fault.KindOf(err) != fault.Unavailable || !strings.Contains(fault.Details(err), "full") {
		t.Errorf("a full disk: got %v", err)
	}
	limit(1 << 20)
	if err := add(large, nil); err != nil {
		t.Error(err)
	}
	if n, _, err := One(t.Context(), db, Value[int], `SELECT COUNT(*) FROM rooms`); n != 1 || err != nil {
		t.Errorf("%d rooms are stored, %v", n, err)
	}
}

// The router recovers from a panic of a request.
func TestAPanicUndoesItsTransactionAlone(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "demo.db"))
	var running sync.WaitGroup
	for n := range 16 {
		running.Go(func() {
			isBad := n%4 == 0
			defer func() {
				if p := recover(); isBad != (p != nil) {
					t.Errorf("%d: got panic %v", n, p)
				}
			}()
			err := db.Write(t.Context(), func(ctx context.Context, tx *Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO rooms (room_id) VALUES (?)`, n)
				if isBad {
					panic("a mistake")
				}
				return err
			})
			if err != nil {
				t.Errorf("%d: got %v", n, err)
			}
		})
	}
	running.Wait()
	if n, _, err := One(t.Context(), db, Value[int], `SELECT COUNT(*) FROM rooms`); n != 12 || err != nil {
		t.Errorf("%d rooms are stored, %v", n, err)
	}
}

// Operators may copy the file of a host that has stopped: all data is in it.
func TestAClosedDatabaseIsOneFile(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	db := open(t, filepath.Join(folder, "demo.db"))
	if err := db.Exec(t.Context(), `INSERT INTO rooms (room_id) VALUES ('1')`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if files, err := filepath.Glob(filepath.Join(folder, "*")); len(files) != 1 || err != nil {
		t.Errorf("left are %v, %v", files, err)
	}
}
