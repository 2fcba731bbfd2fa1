package main

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// value is what a node answered for a key: a string, or the fields of a hash.
type value struct {
	key    string
	text   string
	fields map[string]string
	err    error
}

// readValues reads strings and hashes from a node, in one pipeline.
func readValues(ctx context.Context, node redis.UniversalClient, texts, hashes []string) (ofTexts, ofHashes []value) {
	strings, fields := make([]*redis.StringCmd, len(texts)), make([]*redis.MapStringStringCmd, len(hashes))
	// The pipeline's own error is that of one of the commands.
	_, _ = node.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range texts {
			strings[i] = p.Get(ctx, key)
		}
		for i, key := range hashes {
			fields[i] = p.HGetAll(ctx, key)
		}
		return nil
	})
	for i, answer := range strings {
		ofTexts = append(ofTexts, value{key: texts[i], text: answer.Val(), err: answer.Err()})
	}
	for i, answer := range fields {
		ofHashes = append(ofHashes, value{key: hashes[i], fields: answer.Val(), err: answer.Err()})
	}
	return ofTexts, ofHashes
}
