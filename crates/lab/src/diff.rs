//! The differences between two sets of outcomes, and whether they are more than chance.
//!
//! Rows are matched by experiment, system, dimensions and metric. A difference is significant at the level of 5 % by
//! Welch's test on the means of several seeds; one seed on either side says nothing of chance.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::outcome::{Outcome, Row};
use crate::seeds::{Key, key};
use crate::student::Mean;

/// The judgement of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The numbers are equal.
    Equal,
    /// They differ, by no more than chance would make them.
    Chance,
    /// They differ by more.
    Significant,
    /// They differ, and one side has a single seed.
    Unknown,
}

/// A row that both sides have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Changed {
    /// Id of the experiment.
    pub experiment: String,
    /// The row as it was: system, dimensions, metric, unit.
    pub before: Row,
    /// Its number now.
    pub value: f64,
    /// Half of its 95 % interval now.
    pub interval: Option<f64>,
    /// The judgement of the difference.
    pub verdict: Verdict,
}

impl Changed {
    /// Returns the change in percent of the number before.
    pub fn percent(&self) -> f64 {
        100.0 * (self.value / self.before.value - 1.0)
    }
}

/// The differences of two sets of outcomes.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Differences {
    /// Settings that differ, as sentences: parameters, scale, seeds, commit.
    pub settings: Vec<String>,
    /// Rows that both sides have, equal ones included.
    pub rows: Vec<Changed>,
    /// Numbers of rows that only one side has: the first, the second.
    pub alone: (usize, usize),
}

/// Compares two sets of outcomes.
pub fn compare(before: &[Outcome], after: &[Outcome]) -> Differences {
    let mut found = Differences::default();
    let of = |all: &[Outcome]| all.iter().map(|outcome| outcome.rows.len()).sum::<usize>();
    for one in before {
        if let Some(other) = after.iter().find(|other| other.experiment == one.experiment) {
            found.settings.extend(settings(one, other));
            found.rows.extend(rows(one, other));
        }
    }
    found.alone = (of(before) - found.rows.len(), of(after) - found.rows.len());
    found
}

fn settings(one: &Outcome, other: &Outcome) -> Vec<String> {
    let facts = |outcome: &Outcome| {
        let mut facts = outcome.parameters.clone();
        facts.insert("scale".to_owned(), outcome.scale.to_string());
        facts.insert("first seed".to_owned(), outcome.seed.to_string());
        facts.insert("seeds".to_owned(), outcome.seeds.to_string());
        facts.insert("version".to_owned(), outcome.version.clone());
        facts.insert("commit".to_owned(), outcome.commit.clone());
        facts
    };
    let (one_facts, other_facts) = (facts(one), facts(other));
    let names: std::collections::BTreeSet<&String> = one_facts.keys().chain(other_facts.keys()).collect();
    let shown =
        |fact: Option<&String>| fact.filter(|fact| !fact.is_empty()).map_or("unknown", String::as_str).to_owned();
    let differs = |name: &&&String| one_facts.get(**name) != other_facts.get(**name);
    let sentence = |name: &String| {
        let (before, after) = (shown(one_facts.get(name)), shown(other_facts.get(name)));
        format!("{}: {name} was {before}, is {after}", one.experiment)
    };
    names.iter().filter(differs).map(|name| sentence(name)).collect()
}

fn rows(one: &Outcome, other: &Outcome) -> Vec<Changed> {
    let index: BTreeMap<Key<'_>, &Row> = other.rows.iter().map(|row| (key(row), row)).collect();
    let changed = |row: &Row| {
        let now = index.get(&key(row))?;
        let verdict = verdict(mean(row, one), mean(now, other), row.value == now.value);
        let experiment = one.experiment.clone();
        Some(Changed { experiment, before: row.clone(), value: now.value, interval: now.interval, verdict })
    };
    one.rows.iter().filter_map(changed).collect()
}

fn mean(row: &Row, outcome: &Outcome) -> Option<Mean> {
    row.interval.map(|half| Mean { value: row.value, half, samples: outcome.seeds })
}

fn verdict(one: Option<Mean>, other: Option<Mean>, is_equal: bool) -> Verdict {
    match (one, other) {
        _ if is_equal => Verdict::Equal,
        (Some(one), Some(other)) if one.differs(&other) => Verdict::Significant,
        (Some(_), Some(_)) => Verdict::Chance,
        _ => Verdict::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(seeds: u32, rows: &[(&str, f64, Option<f64>)]) -> Outcome {
        let row = |(system, value, interval): &(&str, f64, Option<f64>)| Row {
            system: (*system).to_owned(),
            metric: "elapsed".to_owned(),
            value: *value,
            interval: *interval,
            ..Row::default()
        };
        Outcome { experiment: "x".to_owned(), seeds, rows: rows.iter().map(row).collect(), ..Outcome::default() }
    }

    #[test]
    fn a_difference_is_judged_by_both_intervals() {
        let before =
            outcome(3, &[("a", 10.0, Some(0.1)), ("b", 10.0, Some(2.0)), ("c", 1.0, Some(0.0)), ("gone", 1.0, None)]);
        let after = outcome(3, &[("a", 12.0, Some(0.1)), ("b", 10.5, Some(2.0)), ("c", 1.0, Some(0.0))]);
        let found = compare(std::slice::from_ref(&before), &[after]);
        let verdicts: Vec<Verdict> = found.rows.iter().map(|row| row.verdict).collect();
        assert_eq!(verdicts, [Verdict::Significant, Verdict::Chance, Verdict::Equal]);
        assert_eq!((found.alone, found.settings.len()), ((1, 0), 0));
        assert!((found.rows[0].percent() - 20.0).abs() < 1e-9);
        let once = compare(&[before], &[Outcome { commit: "abc".to_owned(), ..outcome(1, &[("a", 12.0, None)]) }]);
        assert_eq!(once.rows[0].verdict, Verdict::Unknown);
        assert_eq!(once.settings, ["x: commit was unknown, is abc", "x: seeds was 3, is 1"]);
    }
}
