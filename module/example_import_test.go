package module_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"go.uber.org/fx"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
)

// Importing users from the host's own tables: at their first use, or all at once.
func ExampleImportSource() {
	tables := &oldTables{}
	_ = fx.Options(
		fx.Provide(fx.Annotate(newOldTables, fx.As(new(module.ImportSource)))),
	)
	var service module.HostService // Push.Host of package pushfx, or out of the fx container
	m := &mover{service, tables, tables.db}
	if err := m.moveAll(context.Background(), []mxid.UserID{"@alice:example.org", "@bob:example.org"}); err != nil {
		log.Print(err)
	}
}

// oldTables are the host's former tables of push rules and pushers. Its table users has
// gained the columns push_forgotten and push_moved.
type oldTables struct{ db *sql.DB }

func newOldTables() *oldTables { return &oldTables{} }

var _ module.ImportSource = (*oldTables)(nil)

func (o *oldTables) Load(ctx context.Context, user mxid.UserID) (from module.Import, found bool, err error) {
	err = o.db.QueryRowContext(ctx, `SELECT content FROM account_data JOIN users USING (user_id)
		WHERE user_id = $1 AND type = 'm.push_rules' AND NOT push_forgotten`, user).Scan(&from.Rules)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return module.Import{}, false, err
	}
	from.Pushers, err = o.pushers(ctx, user)
	return from, from.Rules != "" || len(from.Pushers) > 0, err
}

func (o *oldTables) pushers(ctx context.Context, user mxid.UserID) (all []pusher.Pusher, err error) {
	rows, err := o.db.QueryContext(ctx, `SELECT app_id, pushkey, kind, app_display_name, device_display_name, lang, data,
		profile_tag, device_id FROM pushers JOIN users USING (user_id) WHERE user_id = $1 AND NOT push_forgotten ORDER BY id`, user)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var p pusher.Pusher
		var profileTag string
		err := rows.Scan(&p.AppID, &p.Pushkey, &p.Kind, &p.AppDisplayName, &p.DeviceDisplayName, &p.Lang, &p.Data,
			&profileTag, &p.Device)
		if err != nil {
			return nil, err
		}
		p.Extra = []pusher.Member{pusher.ProfileTag(profileTag)}
		all = append(all, p)
	}
	return all, rows.Err()
}

func (o *oldTables) Forget(ctx context.Context, user mxid.UserID) error {
	_, err := o.db.ExecContext(ctx, `UPDATE users SET push_forgotten = TRUE WHERE user_id = $1`, user)
	return err
}

type mover struct {
	host module.HostService
	old  module.ImportSource
	db   *sql.DB
}

// moveAll skips users that it has imported before, so it can be repeated.
func (m *mover) moveAll(ctx context.Context, users []mxid.UserID) error {
	for _, user := range users {
		err := m.moveIn(ctx, user)
		if err == nil {
			_, err = m.db.ExecContext(ctx, `UPDATE users SET push_moved = TRUE WHERE user_id = $1`, user)
		}
		if err != nil {
			return fmt.Errorf("move %s in: %w", user, err)
		}
	}
	return nil
}

func (m *mover) moveIn(ctx context.Context, user mxid.UserID) error {
	from, found, err := m.old.Load(ctx, user)
	if err != nil || !found {
		return err
	}
	result, err := m.host.Import(ctx, user, from, module.StoreImport) // or module.DryRunImport
	for _, refused := range result.Rules.Refused {
		log.Printf("%s: rule %s/%q: %v", user, refused.Kind, refused.ID, refused.Err)
	}
	for _, refused := range result.Pushers.Refused {
		log.Printf("%s: pusher %q %s: %v", user, refused.AppID, refused.Key, refused.Err)
	}
	return err
}
