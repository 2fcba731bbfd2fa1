package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/mxid"
)

// Schema creates the tables of the store if they do not exist.
const Schema = `
CREATE TABLE IF NOT EXISTS push_rules (
	user_id TEXT PRIMARY KEY,
	version BIGINT NOT NULL UNIQUE,
	content TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS push_rules_version (last BIGINT NOT NULL);
INSERT INTO push_rules_version SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM push_rules_version)`

type row struct {
	user    mxid.UserID
	version int64
	content string
}

// selectRows returns the rows of a query. The argument in is the database or a transaction.
func selectRows(ctx context.Context, in interface {
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
}, query string, args ...any,
) (rows []row, err error) {
	found, err := in.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, unavailable(err)
	}
	defer found.Close()
	for found.Next() {
		var r row
		if err := found.Scan(&r.user, &r.version, &r.content); err != nil {
			return nil, unavailable(err)
		}
		rows = append(rows, r)
	}
	return rows, unavailable(found.Err())
}

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return module.Unavailable(err)
}

// many reads the rows of users, 500 with each query, and converts each row to a value. Content is the SQL expression
// for the content.
func many[V any](
	ctx context.Context, db *sql.DB, users []mxid.UserID, content string, value func(row) (V, error),
) map[mxid.UserID]module.Result[V] {
	all := make(map[mxid.UserID]module.Result[V], len(users))
	for batch := range slices.Chunk(users, 500) {
		places, args := []string{"NULL"}, []any{}
		for _, user := range batch {
			if err := user.Validate(); err != nil {
				all[user] = module.Result[V]{Err: err}
				continue
			}
			args = append(args, user)
			places = append(places, fmt.Sprintf("$%d", len(args)))
		}
		rows, err := selectRows(ctx, db, `SELECT user_id, version, `+content+` FROM push_rules WHERE user_id IN (`+
			strings.Join(places, ",")+`)`, args...)
		for _, user := range args {
			all[user.(mxid.UserID)] = module.Result[V]{Err: err}
		}
		for _, r := range rows {
			found, err := value(r)
			all[r.user] = module.Result[V]{Value: found, Err: err}
		}
	}
	return all
}
