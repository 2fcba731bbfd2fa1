package sqlstore

import (
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/storetest"
)

// Each host has its own connection to one database.
func TestContract(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "rules.db")
	database := open(t, file)
	if _, err := database.Exec(Schema); err != nil {
		t.Fatal(err)
	}
	newStore := func(t *testing.T) module.RuleStore { return New(open(t, file), time.Millisecond) }
	storetest.Rules(t, newStore, func(t *testing.T, user mxid.UserID, content string) {
		plant(t, database, user, content)
	})
}

// open returns a connection that waits for locks. Its transactions lock at their
// beginning, so that two of them cannot deadlock.
func open(t *testing.T, file string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(30000)&_pragma=synchronous(OFF)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// plant writes a content like another program, with the next version.
func plant(t *testing.T, db *sql.DB, user mxid.UserID, content string) {
	t.Helper()
	err := New(db, 0).change(t.Context(), user, func(tx *sql.Tx, version int64) error {
		_, err := tx.ExecContext(t.Context(), `INSERT OR REPLACE INTO push_rules VALUES ($1, $2, $3)`, user, version, content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
