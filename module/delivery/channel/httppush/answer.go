package httppush

import (
	"slices"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
)

// AnswerOf returns what an answer of a push gateway says about a notification for a pushkey. The
// specification only defines status 200. From ntfy, 507 concerns one pushkey, and 429 one or all; a
// 502 from sygnal may concern anything. Any 2xx counts as delivered, because a repeated
// notification would ring again.
func AnswerOf(answer module.GatewayAnswer, class channel.Class, pushkey string) channel.Answer {
	status := answer.Status
	a := channel.Answer{Outcome: outcomeOf(answer, class, pushkey), Class: class, Status: status, RetryAfter: answer.RetryAfter}
	a.IsOwn = status >= 400 && status < 500 && status != 429 || status == 507 // for example 404
	return a
}

func outcomeOf(answer module.GatewayAnswer, class channel.Class, pushkey string) module.Outcome {
	switch class {
	case channel.ClassBlocked:
		return module.Blocked
	case channel.ClassUnsent:
		return ""
	case channel.ClassStatus:
	default:
		return module.Failed
	}
	switch status := answer.Status; {
	case status >= 200 && status < 300 && slices.Contains(answer.Rejected, pushkey):
		return module.Gone
	case status >= 200 && status < 300:
		return module.Delivered
	case status == 400, status == 413, status == 422:
		return module.Unfit
	case (status == 429 || status == 503) && answer.RetryAfter > 0:
		return module.Throttled
	case status == 429, status == 507:
		return module.Busy
	}
	return module.Failed
}
