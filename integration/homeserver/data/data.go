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
	"github.com/pushfx/pushfx/module/fault"
)

//go:embed schema.sql
var schema string

// version is the user_version of the schema. A host refuses a file of another version.
const version = 2

const (
	// busyTimeout is how long a write waits for writes of other hosts.
	busyTimeout = 5 * time.Second

	maxReaders = 8 // connections that read
)

// DB is an open database. It is safe for concurrent use. Reads never wait for writes.
type DB struct {
	statements  // that read
	read, write *sql.DB
	writing     chan struct{} // has a value while the host writes: its writes wait here and not in SQLite, which is unfair
	conn        *sql.Conn     // that runs all transactions of the host, so that their statements stay prepared
	tx          *Tx           // on conn
}

// statements keeps prepared statements by their texts, which are constants: half the time of a short statement is its
// text's.
type statements struct {
	on interface {
		PrepareContext(ctx context.Context, text string) (*sql.Stmt, error)
	}
	prepared sync.Map
}

func (s *statements) prepare(ctx context.Context, text string) (*sql.Stmt, error) {
	if known, found := s.prepared.Load(text); found {
		return known.(*sql.Stmt), nil
	}
	statement, err := s.on.PrepareContext(ctx, text)
	if err == nil {
		s.prepared.Store(text, statement) // a statement that another one has prepared meanwhile ends with its connection
	}
	return statement, err
}

// QueryContext implements [Source].
func (s *statements) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	statement, err := s.prepare(ctx, text)
	if err != nil {
		return nil, err
	}
	return statement.QueryContext(ctx, args...)
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
	if info, err := os.Stat(path); err == nil && info.IsDir() { // here, too
		return nil, fmt.Errorf("%s is a folder", file)
	}
	// WAL with synchronous NORMAL: a killed host loses nothing, a power failure may take the last transactions. Without
	// temp_store, each statement that writes several rows maps 64 KiB of memory for its journal, and unmaps it.
	name := (&url.URL{Scheme: "file", OmitHost: true, Path: filepath.ToSlash(path)}).String() +
		fmt.Sprintf("?_txlock=immediate&_pragma=busy_timeout(%d)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(1)"+
			"&_pragma=temp_store(MEMORY)", busyTimeout.Milliseconds())
	db := &DB{writing: make(chan struct{}, 1)}
	if db.write, err = sql.Open("sqlite", name); err != nil {
		return nil, err
	}
	if db.read, err = sql.Open("sqlite", name+"&_pragma=query_only(1)"); err != nil {
		return nil, err
	}
	db.write.SetMaxOpenConns(2)
	db.read.SetMaxOpenConns(maxReaders)
	db.read.SetMaxIdleConns(maxReaders)
	db.on = db.read
	if err := db.start(ctx); err != nil {
		db.Close()
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return db, nil
}

// start creates the tables, and opens the connection for transactions.
func (db *DB) start(ctx context.Context) error {
	err := db.create(ctx)
	for began := time.Now(); isBusy(err) && time.Since(began) < busyTimeout; err = db.create(ctx) {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	if db.conn, err = db.write.Conn(ctx); err != nil {
		return err
	}
	db.tx = &Tx{statements{on: db.conn}}
	return nil
}

// isBusy reports whether another host is creating the file: SQLite does not wait for the change to WAL.
func isBusy(err error) bool {
	failed := new(sqlite.Error)
	return errors.As(err, &failed) && failed.Code()&0xff == sqlite3.SQLITE_BUSY
}

// create creates the tables of a new file, and refuses a file of another version.
func (db *DB) create(ctx context.Context) error {
	if _, err := db.write.ExecContext(ctx, `PRAGMA journal_mode = WAL`); err != nil {
		return err
	}
	tx, err := db.write.BeginTx(ctx, nil)
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

// Close closes the connections. The last one of all hosts moves the data of the WAL to the file.
func (db *DB) Close() error {
	if db.conn != nil {
		for _, statement := range db.tx.prepared.Range {
			_ = statement.(*sql.Stmt).Close() // otherwise the connection stays open
		}
		_ = db.conn.Close() // to the pool
	}
	return errors.Join(db.read.Close(), db.write.Close())
}

// Tx is a transaction.
type Tx struct{ statements }

// ExecContext is that of [sql.Tx].
func (t *Tx) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	statement, err := t.prepare(ctx, text)
	if err != nil {
		return nil, err
	}
	return statement.ExecContext(ctx, args...)
}

// beginWriting waits until no other goroutine writes.
func (db *DB) beginWriting(ctx context.Context) (end func(), err error) {
	waiting, cancel := context.WithTimeout(ctx, busyTimeout)
	defer cancel()
	select {
	case db.writing <- struct{}{}:
		return func() { <-db.writing }, nil
	case <-waiting.Done():
		return nil, fmt.Errorf("waiting for writes that wait for a locked file: %w", waiting.Err())
	}
}

// Write runs a transaction, which sees the writes of all hosts. Its errors are faults: those of do, or [module.Unavailable].
func (db *DB) Write(ctx context.Context, do func(ctx context.Context, tx *Tx) error) error {
	end, err := db.beginWriting(ctx)
	if err != nil {
		return failed(err)
	}
	defer end()
	// From here on only other hosts can delay it, up to the busy timeout.
	return failed(db.tx.run(context.WithoutCancel(ctx), do))
}

func (t *Tx) run(ctx context.Context, do func(ctx context.Context, tx *Tx) error) (err error) {
	if _, err = t.ExecContext(ctx, `BEGIN IMMEDIATE`); err != nil {
		return err
	}
	isCommitted := false
	defer func() { // also in a panic, which the router recovers
		if !isCommitted {
			_, _ = t.ExecContext(ctx, `ROLLBACK`) // an error such as a full disk has done it already
		}
	}()
	if err = do(ctx, t); err != nil {
		return err
	}
	_, err = t.ExecContext(ctx, `COMMIT`)
	isCommitted = err == nil
	return err
}

// Exec is [DB.Write] for one statement.
func (db *DB) Exec(ctx context.Context, statement string, args ...any) error {
	_, err := db.Writer().ExecContext(ctx, statement, args...)
	return err
}

// Writer writes with single statements; see [DB.Write] for transactions.
type Writer struct {
	*sql.DB
	db *DB
}

// Writer returns the writer of the database.
func (db *DB) Writer() Writer { return Writer{db.write, db} }

// ExecContext runs a statement as [DB.Write] does.
func (w Writer) ExecContext(ctx context.Context, statement string, args ...any) (result sql.Result, err error) {
	err = w.db.Write(ctx, func(ctx context.Context, tx *Tx) (err error) {
		result, err = tx.ExecContext(ctx, statement, args...)
		return err
	})
	return result, err
}

// QueryContext runs a statement that may write and returns rows, such as UPDATE RETURNING. Other writes of the host wait
// until the rows are closed.
func (w Writer) QueryContext(ctx context.Context, statement string, args ...any) (*sql.Rows, error) {
	end, err := w.db.beginWriting(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	return w.DB.QueryContext(ctx, statement, args...)
}

func failed(err error) error {
	if err == nil || fault.KindOf(err) != fault.Internal {
		return err
	}
	return module.Unavailable(fmt.Errorf("host: %w", err))
}

// Source is where [All] and [One] read: a [DB], or a transaction.
type Source interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Scan reads the columns of a row, as [sql.Rows.Scan] does.
type Scan func(columns ...any) error

// All returns what read makes of each row of a query. Its error is [module.Unavailable].
func All[T any](ctx context.Context, from Source, read func(Scan) (T, error), query string, args ...any) (all []T, err error) {
	// A read never waits for long, and to watch for the end of a context would cost more than most reads.
	rows, err := from.QueryContext(context.WithoutCancel(ctx), query, args...)
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
