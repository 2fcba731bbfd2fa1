// Package sqlstore is an example of a [module.RuleStore] and of an outbox in an SQL database,
// made to be copied. It works on Postgres and SQLite. Its README explains it.
package sqlstore

import (
	"context"
	"database/sql"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pushrule"
)

var _ module.RuleStore = (*Store)(nil)

// Store is a [module.RuleStore] on the tables of [Schema]. It is safe for concurrent use.
type Store struct {
	db    *sql.DB
	every time.Duration
}

// New returns a store that, while it watches, polls the database at the given interval.
func New(db *sql.DB, every time.Duration) *Store {
	return &Store{db, every}
}

// Update implements [module.RuleStore].
func (s *Store) Update(
	ctx context.Context, user mxid.UserID, edit func(*pushrule.Ruleset, bool) error,
) (after module.Content, err error) {
	err = s.change(ctx, user, func(tx *sql.Tx, version int64) error {
		rows, err := selectRows(ctx, tx, `SELECT user_id, version, content FROM push_rules WHERE user_id = $1`, user)
		if err != nil {
			return err
		}
		var before module.Content // none
		for _, r := range rows {
			if before, err = read(r); err != nil {
				return err // an unreadable content is not overwritten
			}
		}
		after = before
		if err := edit(&after.Rules, before.Found()); err != nil {
			return err
		}
		if before.Found() && after.Rules.Equal(before.Rules) {
			return nil
		}
		after.Version = version
		_, err = tx.ExecContext(ctx, `INSERT INTO push_rules (user_id, version, content) VALUES ($1, $2, $3)
			ON CONFLICT (user_id) DO UPDATE SET version = excluded.version, content = excluded.content`,
			user, version, string(after.AppendJSON(nil)))
		return unavailable(err)
	})
	if err != nil {
		return module.Content{}, err
	}
	return after, nil
}

// Delete implements [module.RuleStore].
func (s *Store) Delete(ctx context.Context, user mxid.UserID) error {
	return s.change(ctx, user, func(tx *sql.Tx, _ int64) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM push_rules WHERE user_id = $1`, user)
		return unavailable(err)
	})
}

// change calls do with the next version, in a transaction. It locks the row of the last version until the transaction
// ends, so changes become visible in the order of their versions.
func (s *Store) change(ctx context.Context, user mxid.UserID, do func(tx *sql.Tx, version int64) error) error {
	if err := user.Validate(); err != nil {
		return err
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return unavailable(err)
	}
	defer tx.Rollback() // no effect after the commit
	var version int64
	next := tx.QueryRowContext(ctx, `UPDATE push_rules_version SET last = last + 1 RETURNING last`)
	if err := next.Scan(&version); err != nil {
		return unavailable(err)
	}
	if err := do(tx, version); err != nil {
		return err
	}
	return unavailable(tx.Commit())
}

// Load implements [module.RuleStore].
func (s *Store) Load(ctx context.Context, user mxid.UserID) (module.Content, error) {
	loaded := s.LoadMany(ctx, []mxid.UserID{user})[user]
	return loaded.Value, loaded.Err
}

// LoadMany implements [module.RuleStore].
func (s *Store) LoadMany(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[module.Content] {
	return many(ctx, s.db, users, "content", read)
}

// Versions implements [module.RuleStore]. It reads no rules.
func (s *Store) Versions(ctx context.Context, users []mxid.UserID) map[mxid.UserID]module.Result[int64] {
	return many(ctx, s.db, users, "''", func(r row) (int64, error) { return r.version, nil })
}

func read(r row) (module.Content, error) { return module.ReadContent(r.content, r.version) }

// Watch implements [module.RuleStore]. It polls the database for changes.
func (s *Store) Watch(ctx context.Context, watching func(), changed func(module.Change)) error {
	var last int64
	if err := s.db.QueryRowContext(ctx, `SELECT last FROM push_rules_version`).Scan(&last); err != nil {
		return unavailable(err)
	}
	watching()
	ticks := time.NewTicker(s.every)
	defer ticks.Stop()
	for {
		rows, err := selectRows(ctx, s.db,
			`SELECT user_id, version, '' FROM push_rules WHERE version > $1 ORDER BY version LIMIT 1000`, last)
		if err != nil {
			return err
		}
		for _, r := range rows {
			changed(module.Change{User: r.user, Version: r.version})
			last = r.version
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
