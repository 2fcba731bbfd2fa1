package main

import (
	"bytes"
	"encoding/json"
	"os"

	"github.com/pushfx/pushfx/module/pushrule"
)

// readDefaultRules reads the hosts' own default rules, which stand below features;
// without a file there are none.
func readDefaultRules(file string, features []pushrule.Feature) (rules []pushrule.DefaultRule, err error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	enabled := true
	var read []struct {
		Kind       pushrule.Kind     `json:"kind"`
		ID         string            `json:"rule_id"`
		Enabled    *bool             `json:"enabled"`
		Actions    []json.RawMessage `json:"actions"`
		Conditions []json.RawMessage `json:"conditions"`
		Pattern    string            `json:"pattern"`
		Before     string            `json:"before"`
	}
	if err := strictUnmarshal(text, &read); err != nil {
		return nil, err
	}
	for _, r := range read {
		if r.Enabled == nil {
			r.Enabled = &enabled
		}
		rules = append(rules, pushrule.DefaultRule{
			Kind: r.Kind, ID: r.ID, Disabled: !*r.Enabled, Actions: texts[pushrule.Action](r.Actions),
			Conditions: texts[pushrule.Condition](r.Conditions), Pattern: r.Pattern, Before: r.Before,
		})
	}
	_, err = pushrule.NewDefaults(features, rules...)
	return rules, err
}

func texts[T ~string](values []json.RawMessage) (all []T) {
	for _, value := range values {
		all = append(all, T(value))
	}
	return all
}

// strictUnmarshal reads JSON, and refuses members that value does not have.
func strictUnmarshal(text []byte, value any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(value)
}
