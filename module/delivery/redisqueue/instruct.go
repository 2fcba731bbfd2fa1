package redisqueue

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/stored"
)

const (
	// answerPoll is how often answers to instructions are asked for.
	answerPoll = 100 * time.Millisecond

	// instructionLasts is when an instruction expires that is not taken back, since
	// who gave it has died.
	instructionLasts = time.Minute
)

// Instruct has the owners of shards do something; see [module.DeliveryQueue].
func (q *Queue) Instruct(ctx context.Context, instructions map[int][]byte) map[int]module.Result[[]byte] {
	id := rand.Text()
	results := make(map[int]module.Result[[]byte], len(instructions))
	waiting := maps.Clone(instructions)
	for shard, err := range q.giveInstructions(ctx, id, instructions) {
		if ctx.Err() != nil { // it may have been given
			break
		}
		results[shard] = module.Result[[]byte]{Err: err}
		delete(waiting, shard)
	}
	ticker := time.NewTicker(answerPoll)
	defer ticker.Stop()
	for len(waiting) > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
			for shard, answer := range q.readAnswers(ctx, id, waiting) {
				results[shard] = module.Result[[]byte]{Value: answer}
				delete(waiting, shard)
			}
		}
	}
	for shard := range waiting {
		results[shard] = module.Result[[]byte]{Err: module.ErrNotAnswered}
	}
	q.takeBack(context.WithoutCancel(ctx), id, instructions)
	return results
}

// giveInstructions returns an error for each shard whose instruction is not to be
// waited for.
func (q *Queue) giveInstructions(ctx context.Context, id string, instructions map[int][]byte) map[int]error {
	given, expire := make(map[int]*redis.IntCmd, len(instructions)), make(map[int]*redis.BoolCmd, len(instructions))
	failures := map[int]error{}
	q.pipelined(ctx, func(ctx context.Context, p redis.Pipeliner) {
		for shard, instruction := range instructions {
			key := q.keys.ShardInstructions(shard)
			given[shard] = p.HSet(ctx, key, stored.InstructionField+id, instruction)
			expire[shard] = p.PExpire(ctx, key, instructionLasts)
		}
	})
	for shard, cmd := range given {
		if err := errors.Join(cmd.Err(), expire[shard].Err()); err != nil {
			failures[shard] = unavailable("instruct", err)
		}
	}
	return failures
}

// readAnswers returns the answers that there are. What cannot be read is read again
// the next time.
func (q *Queue) readAnswers(ctx context.Context, id string, waiting map[int][]byte) map[int][]byte {
	read := make(map[int]*redis.StringCmd, len(waiting))
	answers := map[int][]byte{}
	q.pipelined(ctx, func(ctx context.Context, p redis.Pipeliner) {
		for shard := range waiting {
			read[shard] = p.HGet(ctx, q.keys.ShardInstructions(shard), stored.AnswerField+id)
		}
	})
	for shard, cmd := range read {
		if answer, err := cmd.Bytes(); err == nil {
			answers[shard] = answer
		}
	}
	return answers
}

// takeBack removes instructions with their answers. Where that fails they expire.
func (q *Queue) takeBack(ctx context.Context, id string, instructions map[int][]byte) {
	q.pipelined(ctx, func(ctx context.Context, p redis.Pipeliner) {
		for shard := range instructions {
			p.HDel(ctx, q.keys.ShardInstructions(shard), stored.InstructionField+id, stored.AnswerField+id)
		}
	})
}

// pipelined sends commands that may be repeated. Each has its own error.
func (q *Queue) pipelined(ctx context.Context, commands func(context.Context, redis.Pipeliner)) {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	_, _ = q.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		commands(ctx, p)
		return nil
	})
}

// readInstructions reads the fields of [stored.Keys.ShardInstructions], nil if there
// is no instruction among them.
func readInstructions(fields any) map[string][]byte {
	all, _ := fields.([]any)
	var instructions map[string][]byte
	for i := 0; i+1 < len(all); i += 2 {
		field, _ := all[i].(string)
		value, _ := all[i+1].(string)
		if id, found := strings.CutPrefix(field, stored.InstructionField); found {
			if instructions == nil {
				instructions = map[string][]byte{}
			}
			instructions[id] = []byte(value)
		}
	}
	return instructions
}
