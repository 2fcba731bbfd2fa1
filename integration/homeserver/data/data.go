// Package data opens the demo host's database, an SQLite file. The hosts of a machine may
// share it.
package data

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/pushfx/pushfx/integration/sqlstore"
	"github.com/pushfx/pushfx/module"
)

//go:embed schema.sql
var schema string

// version is the user_version of the schema. A host refuses a file of another version.
const version = 1

const (
	// busyTimeout is how long a write waits for writes of other hosts.
	busyTimeout = 5 * time.Second

	maxReaders = 8 // connections that read
)

// DB is an open database. It is safe for concurrent use. Reads never wait for writes.
type DB struct {
	reader *pool
	writer *pool // one connection, so that the writes of a host wait in the host and not in SQLite
}

// pool keeps prepared statements by their texts, which are constants: half the time of a short statement is its text's.
type pool struct {
	*sql.DB
	prepared sync.Map
}

func (p *pool) prepare(ctx context.Context, text string) (*sql.Stmt, error) {
	if known, found := p.prepared.Load(text); found {
		return known.(*sql.Stmt), nil
	}
	statement, err := p.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	known, found := p.prepared.LoadOrStore(text, statement)
	if found {
		_ = statement.Close() // another one was as quick
	}
	return known.(*sql.Stmt), nil
}

// Open opens a file, and creates it if it does not exist.
func Open(ctx context.Context, file string) (*DB, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, err // SQLite would say that it is out of memory
	}
	// WAL with synchronous NORMAL: a killed host loses nothing, a power failure may take the last transactions.
	name := (&url.URL{Scheme: "file", OmitHost: true, Path: filepath.ToSlash(path)}).String() +
		fmt.Sprintf("?_txlock=immediate&_pragma=busy_timeout(%d)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(1)", busyTimeout.Milliseconds())
	writer, err := sql.Open("sqlite", name)
	if err != nil {
		return nil, err
	}
	reader, err := sql.Open("sqlite", name+"&_pragma=query_only(1)")
	if err != nil {
		return nil, err
	}
	db := &DB{reader: &pool{DB: reader}, writer: &pool{DB: writer}}
	db.writer.SetMaxOpenConns(1)
	db.reader.SetMaxOpenConns(maxReaders)
	db.reader.SetMaxIdleConns(maxReaders)
	err = db.prepare(ctx)
	for began := time.Now(); isBusy(err) && time.Since(began) < busyTimeout; err = db.prepare(ctx) {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return db, nil
}

// isBusy reports whether another host is creating the file: SQLite does not wait for the change to WAL.
func isBusy(err error) bool {
	failed := new(sqlite.Error)
	return errors.As(err, &failed) && failed.Code()&0xff == sqlite3.SQLITE_BUSY
}

// prepare creates the tables of a new file, and refuses a file of another version.
func (db *DB) prepare(ctx context.Context) error {
	if _, err := db.writer.ExecContext(ctx, `PRAGMA journal_mode = WAL`); err != nil {
		return err
	}
	tx, err := db.writer.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // no effect after the commit
	var has, tables int
	if err := tx.QueryRowContext(ctx, `SELECT user_version, (SELECT COUNT(*) FROM sqlite_schema) FROM pragma_user_version`).Scan(&has, &tables); err != nil {
		return err
	}
	switch {
	case has == version:
		return nil
	case has != 0 || tables > 0:
		return fmt.Errorf("the data has version %d, and this program reads version %d: take another file", has, version)
	}
	if _, err := tx.ExecContext(ctx, schema+sqlstore.OutboxSchema); err != nil {
		return err
	}
	return tx.Commit()
}

// Close closes the connections.
func (db *DB) Close() error { return errors.Join(db.reader.Close(), db.writer.Close()) }

// Writer is for single statements; see [DB.Write] for transactions.
func (db *DB) Writer() *sql.DB { return db.writer.DB }

// Refusal is an error for the client.
type Refusal string

// Error returns the text.
func (r Refusal) Error() string { return string(r) }

// Tx is a transaction. Its statements are prepared for later transactions when it ends.
type Tx struct {
	*sql.Tx
	on  *pool
	new []string
}

func (t *Tx) prepared(ctx context.Context, text string) (*sql.Stmt, bool) {
	known, found := t.on.prepared.Load(text)
	if !found {
		t.new = append(t.new, text)
		return nil, false
	}
	return t.StmtContext(ctx, known.(*sql.Stmt)), true
}

// ExecContext is that of [sql.Tx].
func (t *Tx) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	if statement, found := t.prepared(ctx, text); found {
		return statement.ExecContext(ctx, args...)
	}
	return t.Tx.ExecContext(ctx, text, args...)
}

// QueryContext is that of [sql.Tx].
func (t *Tx) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	if statement, found := t.prepared(ctx, text); found {
		return statement.QueryContext(ctx, args...)
	}
	return t.Tx.QueryContext(ctx, text, args...)
}

// Write runs a transaction, which sees the writes of all hosts. Its errors are a [Refusal], or [module.Unavailable].
func (db *DB) Write(ctx context.Context, do func(ctx context.Context, tx *Tx) error) error {
	waiting, cancel := context.WithTimeout(ctx, busyTimeout)
	defer cancel()
	conn, err := db.writer.Conn(waiting)
	if err != nil {
		return failed(fmt.Errorf("waiting for writes that wait for a locked file: %w", err))
	}
	// From here on only other hosts can delay it, up to the busy timeout.
	ctx = context.WithoutCancel(ctx)
	tx := &Tx{on: db.writer}
	err = tx.run(ctx, conn, do)
	conn.Close()
	for _, text := range tx.new { // now the connection is free for it
		if _, err := db.writer.prepare(ctx, text); err != nil {
			break
		}
	}
	return failed(err)
}

func (t *Tx) run(ctx context.Context, conn *sql.Conn, do func(ctx context.Context, tx *Tx) error) (err error) {
	if t.Tx, err = conn.BeginTx(ctx, nil); err != nil {
		return err
	}
	defer t.Rollback() // no effect after the commit
	if err := do(ctx, t); err != nil {
		return err
	}
	return t.Commit()
}

// Exec is [DB.Write] for one statement.
func (db *DB) Exec(ctx context.Context, statement string, args ...any) error {
	return db.Write(ctx, func(ctx context.Context, tx *Tx) error {
		_, err := tx.ExecContext(ctx, statement, args...)
		return err
	})
}

func failed(err error) error {
	if refusal := Refusal(""); err == nil || errors.As(err, &refusal) {
		return err
	}
	return module.Unavailable(fmt.Errorf("host: %w", err))
}

// Source is where [All] and [One] read: a [DB], or a transaction.
type Source interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// QueryContext implements [Source].
func (db *DB) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	statement, err := db.reader.prepare(ctx, query)
	if err != nil {
		return nil, err
	}
	return statement.QueryContext(ctx, args...)
}

// Scan reads the columns of a row, as [sql.Rows.Scan] does.
type Scan func(columns ...any) error

// All returns what read makes of each row of a query. Its error is [module.Unavailable].
func All[T any](ctx context.Context, from Source, read func(Scan) (T, error), query string, args ...any) (all []T, err error) {
	ctx, cancel := context.WithTimeout(ctx, busyTimeout)
	defer cancel()
	rows, err := from.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, failed(err)
	}
	defer rows.Close()
	for rows.Next() {
		one, err := read(rows.Scan)
		if err != nil {
			return nil, failed(err)
		}
		all = append(all, one)
	}
	return all, failed(rows.Err())
}

// One returns what read makes of the first row of a query. Found is false without a row.
func One[T any](ctx context.Context, from Source, read func(Scan) (T, error), query string, args ...any) (one T, found bool, err error) {
	all, err := All(ctx, from, read, query, args...)
	if err != nil || len(all) == 0 {
		return one, false, err
	}
	return all[0], true, nil
}

// Value reads a row with one column.
func Value[T any](scan Scan) (value T, err error) {
	err = scan(&value)
	return value, err
}
