package httppush

import (
	"strconv"
	"time"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/strictjson"
)

const (
	bodyStart = `{"notification":{`
	bodyEnd   = `]}}`
)

// body returns the body of a request (Matrix specification, Push Gateway API,
// "POST /_matrix/push/v1/notify"). Above the limit, it leaves out the content, then all but
// the ids, and it has only the ids if the notification has no text, or the pusher's format
// is event_id_only. Counts alone have low priority: without "prio", they would wake phones.
func (d *device) body(n channel.Notification, max int) []byte {
	if d.IsIDOnly {
		n.Text = ""
	}
	tweaks, members, shown := content.Split(n.Text)
	if members != "" {
		if body := d.appendBody(n, tweaks, members, shown); len(body) <= max {
			return body
		}
		if shown != "" {
			if body := d.appendBody(n, tweaks, members, ""); len(body) <= max {
				return body
			}
		}
	}
	return d.appendBody(n, "", "", "")
}

func (d *device) appendBody(n channel.Notification, tweaks, members, shown string) []byte {
	dst := make([]byte, 0, 512+len(d.data)+len(n.Text))
	dst = append(dst, bodyStart...)
	switch {
	case members != "":
		dst = append(dst, members...)
		if shown != "" {
			dst = append(append(dst, ','), shown...)
		}
	case n.Meta.Event != "":
		dst = content.AppendPriority(content.AppendIDs(dst, n.Meta.Event, n.Meta.Room), n.Priority == module.HighPriority)
	default:
		dst = content.AppendPriority(dst, false)
	}
	if n.Counts != nil && !d.NoCounts {
		dst = appendCounts(dst, *n.Counts)
	}
	dst = append(strictjson.AppendMember(dst, "devices"), '[')
	return append(d.append(dst, tweaks), bodyEnd...)
}

// appendCounts also sends an unread count of 0, against the specification: it clears
// badges, and all homeservers send it.
func appendCounts(dst []byte, counts module.Counts) []byte {
	dst = append(strictjson.AppendMember(dst, "counts"), '{')
	dst = strconv.AppendInt(strictjson.AppendMember(dst, "unread"), int64(counts.Unread), 10)
	if counts.MissedCalls > 0 {
		dst = strconv.AppendInt(strictjson.AppendMember(dst, "missed_calls"), int64(counts.MissedCalls), 10)
	}
	return append(dst, '}')
}

func (d *device) append(dst []byte, tweaks string) []byte {
	dst = content.AppendString(append(dst, '{'), "app_id", d.Key.AppID)
	dst = content.AppendString(dst, "pushkey", d.Key.Pushkey)
	if ts := d.SetAt / int64(time.Second/time.Microsecond); ts > 0 {
		dst = strconv.AppendInt(strictjson.AppendMember(dst, "pushkey_ts"), ts, 10)
	}
	dst = append(strictjson.AppendMember(dst, "data"), d.data...)
	if tweaks != "" {
		dst = append(strictjson.AppendMember(dst, "tweaks"), tweaks...)
	}
	return append(dst, '}')
}
