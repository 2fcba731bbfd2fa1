package rediscommit

import (
	"time"

	"github.com/redis/go-redis/v9"
)

type Advice struct{}

func (Advice) String() string { return "" }

func Advise(client redis.UniversalClient, operationTimeout time.Duration) []Advice { return nil }
