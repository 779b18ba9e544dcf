//! From records to rows: medians of ratios per round, with their spread, against the targets.
//!
//! A ratio is taken between two systems of the same round only; the median over rounds is compared
//! with the target. [`ROWS`] is the one list of the metrics, their meanings and their targets.

use serde::Serialize;

use crate::record::Record;

/// A row of the tables, before any measurement.
pub(crate) struct RowKind {
    /// Suite that measures the metric.
    pub(crate) suite: &'static str,
    /// The metric's name in records.
    pub(crate) metric: &'static str,
    /// The row's title in tables.
    pub(crate) title: &'static str,
    /// Description of the work that is timed.
    pub(crate) meaning: &'static str,
    /// Comparison and target of the row.
    ask: Ask,
}

/// The comparison that a row makes.
enum Ask {
    /// moafs as a share of each of these, in the same round, with the least that is asked.
    Shares(&'static [(&'static str, Option<f64>)]),
    /// A value of moafs itself, at least or at most so much.
    Least(f64),
    Most(f64),
}

const NULL: &[(&str, Option<f64>)] = &[("null", Some(0.8)), ("ext4", None)];

const fn operation(metric: &'static str, title: &'static str, meaning: &'static str) -> RowKind {
    RowKind { suite: "operations", metric, title, meaning, ask: Ask::Shares(NULL) }
}

const fn sequential(metric: &'static str, title: &'static str, meaning: &'static str) -> RowKind {
    RowKind { suite: "sequential", metric, title, meaning, ask: Ask::Shares(NULL) }
}

/// Makes a row for the work per second of the daemon's CPU time, which other load of the machine
/// hardly changes.
const fn per_cpu(metric: &'static str, title: &'static str, meaning: &'static str) -> RowKind {
    RowKind { suite: "sequential", metric, title, meaning, ask: Ask::Shares(&[("null", None)]) }
}

const fn limit(metric: &'static str, title: &'static str, ask: Ask, meaning: &'static str) -> RowKind {
    RowKind { suite: "limits", metric, title, meaning, ask }
}

/// All rows, in the order of the tables.
pub(crate) const ROWS: &[RowKind] = &[
    RowKind {
        suite: "postmark",
        metric: "transactions",
        title: "postmark, transactions",
        meaning: "20,000 files of 512 B to 10 KB in 200 directories; the time of 100,000 transactions on them \
                  (fuse2fs: 10,000 on the same files)",
        ask: Ask::Shares(&[("null", None), ("ext4", Some(0.7)), ("fuse2fs", Some(10.0))]),
    },
    RowKind {
        suite: "postmark",
        metric: "whole",
        title: "postmark, whole run",
        meaning: "the same with making and removing the files: creations, transactions and removals per second",
        ask: Ask::Shares(&[("null", None), ("ext4", None)]),
    },
    operation("create", "create + write 4 KiB + close", "new files in one new directory for each client"),
    operation("open-read", "open + read 4 KiB + close", "all pages in the kernel's cache (a pass before fills it)"),
    operation("overwrite", "overwrite 4 KiB", "open with O_TRUNC, write, close"),
    operation("stat", "stat", "statx of files just used: the kernel's caches answer"),
    operation("stat-forced", "stat, forced", "statx with AT_STATX_FORCE_SYNC: through FUSE one bare round trip"),
    operation("unlink", "unlink", "of every file of the directory"),
    sequential("write-burst", "write 1 MiB, 32 MiB", "4 new files of 32 MiB, synced in between without being timed"),
    sequential("write", "write 1 MiB, 128 MiB", "a new file, more than moafs lets wait to be written; no fsync"),
    RowKind {
        suite: "sequential",
        metric: "write-fsync",
        title: "write 1 MiB, 128 MiB, fsync",
        meaning: "a new file, with fsync",
        ask: Ask::Shares(&[("null", None), ("ext4", Some(0.6))]),
    },
    sequential(
        "read-warm",
        "read 1 MiB, warm",
        "128 MiB, dropped from the kernel's cache after a first pass, so that a FUSE daemon may still have them; ext4 \
         reads from its image",
    ),
    sequential(
        "read-cold",
        "read 1 MiB, cold",
        "128 MiB just after mounting, the image dropped from the host's cache (the null file system: as warm)",
    ),
    per_cpu("write-cpu", "write, per CPU second", "bytes of the 128 MiB for each second of the daemon's CPU, synced"),
    per_cpu("write-fsync-cpu", "write, fsync, per CPU second", "the same, with fsync"),
    per_cpu("read-warm-cpu", "read, warm, per CPU second", "the same, of the warm read"),
    per_cpu("read-cold-cpu", "read, cold, per CPU second", "the same, of the cold read"),
    limit(
        "memory-64M",
        "peak memory, cache=64M",
        Ask::Most(1.0),
        "peak resident set of the daemon as a share of cache + 64 MiB: 30,000 files of 4 KiB, a file of twice the \
         cache written and read, half of the files removed",
    ),
    limit("memory-256M", "peak memory, cache=256M", Ask::Most(1.0), "the same with the default cache"),
    limit(
        "mount-1T",
        "mounting 1 TiB",
        Ask::Most(1.0),
        "a new sparse volume made by the format's own tool: of ext2, 8192 groups",
    ),
    limit("mount-1T-reads", "reads for that", Ask::Most(64.0), "requests until then, all descriptors included"),
    limit(
        "directory-create",
        "create, 100,000 files",
        Ask::Least(1.0 / 3.0),
        "rate of making 100,000 empty files in one directory as a share of the rate in directories of 1,000",
    ),
    limit(
        "directory-find",
        "find, 100,000 files",
        Ask::Least(1.0 / 3.0),
        "just after mounting, every name once in random order: rate as a share of that in directories of 1,000",
    ),
    limit(
        "directory-miss",
        "miss, 100,000 files",
        Ask::Least(1.0 / 3.0),
        "names that are not there, each once: rate as a share of that in directories of 1,000",
    ),
];

/// The median, the least and the greatest of some values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Some(Spread { median, min, max })
    }
}

/// moafs as a share of another system.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Share {
    pub(crate) of: &'static str,
    pub(crate) share: Spread,
    /// Least median that is asked for.
    pub(crate) target: Option<f64>,
}

/// A row of the tables.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) backing: String,
    pub(crate) suite: &'static str,
    pub(crate) metric: &'static str,
    pub(crate) title: &'static str,
    pub(crate) clients: u32,
    pub(crate) rounds: usize,
    pub(crate) unit: String,
    /// Values of moafs over the rounds.
    pub(crate) value: Spread,
    /// Values of ext4, where the row has a limit of its own.
    pub(crate) ext4_value: Option<Spread>,
    /// The null file system as a share of ext4: what the transport leaves to reach.
    pub(crate) ceiling: Option<Spread>,
    /// Values of moafs as shares of other systems' in the same rounds.
    pub(crate) shares: Vec<Share>,
    pub(crate) at_least: Option<f64>,
    pub(crate) at_most: Option<f64>,
    /// True if the medians meet the targets; `None` if the row has no target.
    pub(crate) met: Option<bool>,
}

/// Returns all rows that there are records for.
pub(crate) fn rows(records: &[Record]) -> Vec<Row> {
    let mut rows = Vec::new();
    for backing in distinct(records.iter().map(|record| record.backing.clone())) {
        for kind in ROWS {
            let matching = records.iter().filter(|record| {
                record.backing == backing && record.suite == kind.suite && record.metric == kind.metric
            });
            let matching: Vec<&Record> = matching.collect();
            for clients in distinct(matching.iter().map(|record| record.clients)) {
                let records: Vec<&Record> = matching.iter().filter(|r| r.clients == clients).copied().collect();
                rows.extend(row(kind, &backing, clients, &records));
            }
        }
    }
    rows
}

fn distinct<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    items.sort();
    items.dedup();
    items
}

/// Makes a row from the records of its kind, backing and clients; `None` without moafs.
fn row(kind: &'static RowKind, backing: &str, clients: u32, records: &[&Record]) -> Option<Row> {
    let own: Vec<&Record> = records.iter().filter(|record| record.system == "moafs").copied().collect();
    let value = Spread::of(own.iter().map(|record| record.value).collect())?;
    let (shares, at_least, at_most) = match kind.ask {
        Ask::Shares(against) => (shares(against, records), None, None),
        Ask::Least(least) => (Vec::new(), Some(least), None),
        Ask::Most(most) => (Vec::new(), None, Some(most)),
    };
    let limited = at_least.is_some() || at_most.is_some();
    let ext4 = records.iter().filter(|record| limited && record.system == "ext4");
    let asked = shares.iter().filter_map(|share| share.target.map(|target| share.share.median >= target));
    let asked =
        asked.chain(at_least.map(|least| value.median >= least)).chain(at_most.map(|most| value.median <= most));
    Some(Row {
        backing: backing.to_owned(),
        suite: kind.suite,
        metric: kind.metric,
        title: kind.title,
        clients,
        rounds: own.len(),
        unit: own[0].unit.clone(),
        value,
        ext4_value: Spread::of(ext4.map(|record| record.value).collect()),
        met: asked.reduce(|all, one| all && one),
        ceiling: if limited { None } else { ratio(records, "null", "ext4") },
        shares,
        at_least,
        at_most,
    })
}

fn shares(against: &[(&'static str, Option<f64>)], records: &[&Record]) -> Vec<Share> {
    let share = |&(of, target): &(&'static str, Option<f64>)| {
        let share = ratio(records, "moafs", of)?;
        Some(Share { of, share, target })
    };
    against.iter().filter_map(share).collect()
}

/// Returns one system's values as shares of another's, each pair of the same round.
fn ratio(records: &[&Record], system: &str, of: &str) -> Option<Spread> {
    let in_round = |record: &&Record| {
        let other = records.iter().find(|other| other.system == of && other.round == record.round)?;
        Some(record.value / other.value)
    };
    let own = records.iter().filter(|record| record.system == system);
    Spread::of(own.filter_map(in_round).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn ratios_are_taken_within_a_round_and_their_median_is_compared() {
        let records = vec![
            record(1, "create", "moafs", 90.0),
            record(1, "create", "null", 100.0),
            record(1, "create", "ext4", 180.0),
            // A slow round for both changes no ratio.
            record(2, "create", "null", 10.0),
            record(2, "create", "moafs", 8.5),
            record(3, "create", "moafs", 30.0),
            record(3, "create", "null", 60.0),
        ];
        let rows = rows(&records);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].shares[0].share, Spread { median: 0.85, min: 0.5, max: 0.9 });
        assert_eq!(rows[0].shares[1].share, Spread { median: 0.5, min: 0.5, max: 0.5 });
        assert_eq!(rows[0].ceiling.unwrap().median, 100.0 / 180.0);
        assert_eq!((rows[0].rounds, rows[0].met), (3, Some(true)));
    }

    #[test]
    fn every_target_must_be_met() {
        let postmark = |system, value| Record { suite: "postmark".into(), ..record(1, "transactions", system, value) };
        let mut records = vec![postmark("moafs", 100.0), postmark("ext4", 100.0), postmark("fuse2fs", 10.0)];
        assert_eq!(rows(&records)[0].met, Some(true));
        records[2].value = 20.0;
        assert_eq!(rows(&records)[0].met, Some(false));
    }

    #[test]
    fn limits_are_compared_with_the_value_itself() {
        let limit = |system, value| Record { suite: "limits".into(), ..record(1, "mount-1T", system, value) };
        let rows = rows(&[limit("moafs", 1.5), limit("ext4", 0.1)]);
        assert_eq!((rows[0].at_most, rows[0].met), (Some(1.0), Some(false)));
        assert_eq!(rows[0].ext4_value.unwrap().median, 0.1);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of(Vec::new()), None);
    }
}
