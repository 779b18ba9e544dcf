//! `moafs top`: shows the present activity of a mount.

mod keys;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use moafs_runtime::Live;
use serde::Serialize;
use serde_json::Value;

use crate::error::Result;
use crate::output::WithSchema;
use crate::stop::Stop;
use crate::time::{self, Reported};
use crate::{output, stat};
use keys::Keys;

/// Width of a bar.
const BAR: usize = 40;
/// Counters that say how much there is now: they have no rate.
const GAUGES: [&str; 4] = ["cached_bytes", "dirty_bytes", "metadata_bytes", "inodes_now"];
/// The places of the requests' times in the statistics: those of the kernel, and those to the device.
const OPERATIONS: &str = "/operations";
const LATENCIES: &str = "/disk/latencies";
/// Operations of the device that have counters.
const VERBS: [&str; 3] = ["read", "write", "discard"];
/// The operation of the device that has neither bytes nor a kind.
const FLUSH: &str = "flush";

/// Show the activity of a mount at regular intervals
///
/// Bars show the space, the inodes, the share of the cache that is not on the volume yet, and the share of blocks that
/// reads found in the cache; below them are the requests of the kernel and those to the device with the time that one
/// took on average, and all counters. On a terminal `q` ends it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs top /mnt                                until q or Ctrl-C
  moafs top --once /mnt
  moafs top --interval 0.5 --count 10 --json /mnt | jq -c '[.time, .now.dirty_bytes]'

Exit code: 0 ended as asked, 1 the mount cannot be read, 130 interrupted.")]
pub(crate) struct TopArgs {
    /// A directory of the mount
    dir: PathBuf,
    /// Seconds between two reports
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// Number of reports (default: no limit)
    #[arg(short = 'n', long)]
    count: Option<u64>,
    /// One report, as -n 1
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// Print one JSON object per report: its time, what there is now, and the rates of the counters
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    let secs: Option<f64> = text.parse().ok().filter(|secs| (0.05..=3600.0).contains(secs));
    secs.ok_or_else(|| "give seconds between 0.05 and 3600".to_owned())
}

/// A counter and its growth.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Rate {
    name: String,
    total: u64,
    per_s: f64,
}

/// A report, as JSON shows it.
#[derive(Debug, Serialize)]
struct Report<'a> {
    time: Reported,
    interval_s: f64,
    now: Value,
    operations: &'a [Mean],
    latencies: &'a [Mean],
    rates: &'a [Rate],
}

/// The time that a request of the kernel, or to the device, took on average.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Mean {
    verb: String,
    requests: u64,
    mean_us: f64,
}

impl TopArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let stop = Stop::on_signals()?;
        // Keys are only looked for where a person watches.
        let is_watched = io::stdout().is_terminal() && !self.json;
        let keys = if is_watched { Keys::of_terminal() } else { None };
        let count = if self.once { Some(1) } else { self.count };
        let mut before = (Instant::now(), stat::of_mount(&self.dir)?);
        let mut looks = 0;
        while count.is_none_or(|count| looks < count) {
            if !wait(keys.as_ref(), Duration::from_secs_f64(self.interval), &stop)? {
                break;
            }
            let now = (Instant::now(), stat::of_mount(&self.dir)?);
            let secs = (now.0 - before.0).as_secs_f64();
            let rates = rates(&before.1, &now.1, secs);
            let operations = means(&before.1, &now.1, OPERATIONS);
            let latencies = means(&before.1, &now.1, LATENCIES);
            if self.json {
                let time = Reported(Live::new().timestamp());
                let now = gauges(&now.1);
                let report = Report {
                    time,
                    interval_s: secs,
                    now,
                    operations: &operations,
                    latencies: &latencies,
                    rates: &rates,
                };
                let line = serde_json::to_string(&WithSchema::new(&report)).unwrap_or_default();
                output::print(format!("{line}\n").as_bytes())?;
            } else {
                let screen = screen(&now.1, &rates, &operations, &latencies, secs);
                let shown = if is_watched { cleared(&screen, keys::rows()) } else { screen };
                output::print(shown.as_bytes())?;
            }
            before = now;
            looks += 1;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns a report that replaces the one before on a terminal: as much of it as the terminal has rows for.
fn cleared(screen: &str, rows: Option<u16>) -> String {
    let lines = rows.map_or(usize::MAX, |rows| usize::from(rows).saturating_sub(1));
    let shown: Vec<&str> = screen.trim_end().lines().take(lines).collect();
    format!("\x1b[H\x1b[2J{}\n", shown.join("\n"))
}

/// Waits for the next report. Returns false if the key `q` was pressed.
fn wait(keys: Option<&Keys>, interval: Duration, stop: &Stop) -> Result<bool> {
    let until = Instant::now() + interval;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(true);
        }
        match keys {
            Some(keys) => {
                if matches!(keys.next(left), Some(b'q' | b'Q')) {
                    return Ok(false);
                }
            }
            // In slices: a signal does not end a sleep.
            None => std::thread::sleep(left.min(Duration::from_millis(100))),
        }
        stop.check()?;
    }
}

/// Returns what there is now.
fn gauges(stats: &Value) -> Value {
    let mut gauges: serde_json::Map<String, Value> =
        GAUGES.iter().map(|name| ((*name).to_owned(), stats["vfs"][name].clone())).collect();
    gauges.insert("space".to_owned(), stats["space"].clone());
    gauges.into()
}

/// The groups of counters: the place in the statistics, and the prefix of the names.
const COUNTERS: [(&str, &str); 3] = [("/vfs", ""), ("/engine", "engine."), ("/swap/swap/counters", "swap.")];

/// Returns all counters of `vfs`, of the engine and of the swap, and the disk's totals, with their
/// growth in `secs` seconds.
fn rates(before: &Value, now: &Value, secs: f64) -> Vec<Rate> {
    let mut rates = Vec::new();
    for (part, prefix) in COUNTERS {
        for (name, value) in now.pointer(part).and_then(Value::as_object).into_iter().flatten() {
            let was = before.pointer(part).map_or(&Value::Null, |before| &before[name]);
            let (Some(total), Some(was)) = (value.as_u64(), was.as_u64()) else { continue };
            if GAUGES.contains(&name.as_str()) {
                continue;
            }
            let per_s = total.saturating_sub(was) as f64 / secs;
            rates.push(Rate { name: format!("{prefix}{name}"), total, per_s });
        }
    }
    for verb in VERBS {
        for field in ["requests", "bytes"] {
            let (total, was) = (disk_total(now, verb, field), disk_total(before, verb, field));
            let per_s = total.saturating_sub(was) as f64 / secs;
            rates.push(Rate { name: format!("disk.{verb}_{field}"), total, per_s });
        }
    }
    rates
}

/// Returns the times of the requests that ended between two looks, of the table at `place` in the statistics.
fn means(before: &Value, now: &Value, place: &str) -> Vec<Mean> {
    let table = |stats: &Value| stats.pointer(place).and_then(Value::as_array).cloned().unwrap_or_default();
    let was = table(before);
    let mean = |spent: &Value| {
        let before = was.iter().find(|before| before["verb"] == spent["verb"]).unwrap_or(&Value::Null);
        let growth =
            |field: &str| spent[field].as_u64().unwrap_or(0).saturating_sub(before[field].as_u64().unwrap_or(0));
        let (verb, requests) = (spent["verb"].as_str().unwrap_or("-").to_owned(), growth("requests"));
        (requests > 0).then(|| Mean { verb, requests, mean_us: growth("ns") as f64 / requests as f64 / 1e3 })
    };
    table(now).iter().filter_map(mean).collect()
}

fn disk_total(stats: &Value, verb: &str, field: &str) -> u64 {
    let counts = stats["disk"]["counts"].as_array().into_iter().flatten();
    counts.filter(|count| count["verb"] == verb).filter_map(|count| count[field].as_u64()).sum()
}

fn screen(stats: &Value, rates: &[Rate], operations: &[Mean], latencies: &[Mean], secs: f64) -> String {
    let text = |name: &str| output::name(stats[name].as_str().unwrap_or("-").as_bytes());
    let now = time::local(Live::new().timestamp());
    let up = Duration::from_secs_f64(stats["uptime_s"].as_f64().filter(|secs| *secs >= 0.0).unwrap_or(0.0));
    let mut screen = format!(
        "{} on {} ({}), {} volume, up {}   {now}\n",
        text("source"),
        text("target"),
        text("transport"),
        text("format"),
        indicatif::HumanDuration(up),
    );
    if let Some(reason) = stats["failed"].as_str() {
        screen += &format!("FAILED: {}\n", output::name(reason.as_bytes()));
    }
    screen += &bars(stats, rates);
    screen += &requests(operations, secs);
    screen += &device(stats, rates, latencies);
    screen += &format!("\n{:<28} {:>14} {:>16}\n", "counter", "total", "a second");
    for rate in rates.iter().filter(|rate| rate.total > 0 && !rate.name.starts_with("disk.")) {
        let (total, per_s) = if rate.name.ends_with("_bytes") {
            (output::size(rate.total), output::size(rate.per_s as u64))
        } else {
            (rate.total.to_string(), format!("{:.1}", rate.per_s))
        };
        let per_s = if rate.per_s > 0.0 { per_s } else { String::new() };
        screen += format!("{:<28} {total:>14} {per_s:>16}", rate.name).trim_end();
        screen.push('\n');
    }
    screen + "\n"
}

/// Returns the lines with bars.
fn bars(stats: &Value, rates: &[Rate]) -> String {
    let number = |group: &str, name: &str| stats[group][name].as_u64().unwrap_or(0);
    let growth = |name: &str| rates.iter().find(|rate| rate.name == name).map_or(0, |rate| rate.per_s as u64);
    let space = |name: &str| number("space", name).saturating_mul(number("space", "block_size"));
    let (size, inodes) = (space("blocks"), number("space", "inodes"));
    let used = size.saturating_sub(space("free"));
    let inodes_used = inodes.saturating_sub(number("space", "free_inodes"));
    let (dirty, cached) = (number("vfs", "dirty_bytes"), number("vfs", "cached_bytes"));
    let (hits, misses) = (growth("read_hits"), growth("read_misses"));
    [
        bar("space", used, size, &format!("{} of {}", output::size(used), output::size(size))),
        bar("inodes", inodes_used, inodes, &format!("{inodes_used} of {inodes}")),
        bar("dirty", dirty, cached, &format!("{} of {} in the cache", output::size(dirty), output::size(cached))),
        bar("hits", hits, hits + misses, &format!("{hits} of {} blocks read a second", hits + misses)),
    ]
    .concat()
}

fn bar(name: &str, part: u64, whole: u64, words: &str) -> String {
    let filled = if whole == 0 { 0 } else { (u128::from(part.min(whole)) * BAR as u128 / u128::from(whole)) as usize };
    let bar = "#".repeat(filled) + &".".repeat(BAR - filled);
    format!("{name:<8} [{bar}] {:>8}  {words}\n", output::percent(part, whole))
}

/// Returns the table of the requests that the kernel sent, the most frequent first.
fn requests(operations: &[Mean], secs: f64) -> String {
    if operations.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{:<16} {:>12} {:>10}\n", "request", "a second", "latency");
    let mut operations: Vec<&Mean> = operations.iter().collect();
    operations.sort_by_key(|mean| std::cmp::Reverse(mean.requests));
    for mean in operations {
        text += &format!("{:<16} {:>12.1} {:>10}\n", mean.verb, mean.requests as f64 / secs, duration(mean.mean_us));
    }
    text
}

/// Returns the table of requests to the device.
fn device(stats: &Value, rates: &[Rate], latencies: &[Mean]) -> String {
    let of = |verb: &str, field: &str| {
        let name = format!("disk.{verb}_{field}");
        rates.iter().find(|rate| rate.name == name)
    };
    let mut text = format!(
        "\n{:<8} {:>12} {:>14} {:>10} {:>10} {:>14} {:>14}\n",
        "device", "requests/s", "bytes/s", "mean", "latency", "requests", "bytes"
    );
    let latency = |verb| {
        let mean = latencies.iter().find(|mean| mean.verb == verb);
        mean.map_or("-".to_owned(), |mean| duration(mean.mean_us))
    };
    for verb in VERBS {
        let (Some(requests), Some(bytes)) = (of(verb, "requests"), of(verb, "bytes")) else { continue };
        if requests.total == 0 {
            continue;
        }
        let mean =
            if requests.per_s > 0.0 { output::size((bytes.per_s / requests.per_s) as u64) } else { "-".to_owned() };
        text += &format!(
            "{verb:<8} {:>12.1} {:>14} {mean:>10} {:>10} {:>14} {:>14}\n",
            requests.per_s,
            output::size(bytes.per_s as u64),
            latency(verb),
            requests.total,
            output::size(bytes.total)
        );
    }
    let flushes = stats["disk"]["flushes"].as_u64().unwrap_or(0);
    if flushes > 0 {
        text += &format!("{FLUSH:<8} {:>12} {:>14} {:>10} {:>10} {flushes:>14}\n", "", "", "", latency(FLUSH));
    }
    text
}

/// Formats microseconds for people.
fn duration(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0} us"),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rates_are_growth_per_second() {
        let look = |reads: u64, requests: u64| {
            let counts = [json!({"verb": "write", "requests": requests, "bytes": requests * 4096})];
            let swap = json!({"swap": {"counters": {"pages_out": reads * 2}}});
            json!({"vfs": {"reads": reads, "dirty_bytes": reads}, "disk": {"counts": counts}, "swap": swap})
        };
        let rates = rates(&look(10, 5), &look(30, 6), 2.0);
        let of = |name: &str| rates.iter().find(|rate| rate.name == name).map(|rate| (rate.total, rate.per_s));
        assert_eq!(of("reads"), Some((30, 10.0)));
        assert_eq!(of("swap.pages_out"), Some((60, 20.0)));
        assert_eq!(of("disk.write_requests"), Some((6, 0.5)));
        assert_eq!(of("disk.write_bytes"), Some((6 * 4096, 2048.0)));
    }

    #[test]
    fn latencies_are_those_of_the_interval() {
        let look = |requests: u64, ns: u64| json!({"disk": {"flushes": 1, "latencies": [{"verb": "write", "requests": requests, "ns": ns}]}});
        let of_interval = means(&look(10, 10_000_000), &look(14, 18_000_000), LATENCIES);
        assert_eq!(of_interval, [Mean { verb: "write".to_owned(), requests: 4, mean_us: 2000.0 }]);
        assert_eq!(means(&look(10, 5), &look(10, 5), LATENCIES), []);
        assert_eq!(means(&Value::Null, &look(2, 8000), LATENCIES)[0].mean_us, 4.0, "the first look");
        assert_eq!([7.4, 1500.0, 2.5e6].map(duration), ["7 us", "1.5 ms", "2.5 s"]);
    }

    #[test]
    fn requests_of_the_kernel_have_rates_and_latencies() {
        let mean = |verb: &str, requests, mean_us| Mean { verb: verb.to_owned(), requests, mean_us };
        let table = requests(&[mean("lookup", 4, 12.0), mean("write", 30, 1500.0)], 2.0);
        let lines: Vec<Vec<&str>> = table.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines, [["write", "15.0", "1.5", "ms"], ["lookup", "2.0", "12", "us"]]);
        assert_eq!(requests(&[], 1.0), "");
    }

    #[test]
    fn a_report_is_cut_to_the_rows_of_the_terminal() {
        assert_eq!(cleared("a\nb\nc\n\n", Some(3)), "\x1b[H\x1b[2Ja\nb\n");
        assert_eq!(cleared("a\nb\n\n", None), "\x1b[H\x1b[2Ja\nb\n");
    }

    #[test]
    fn what_is_there_now_has_no_rate_and_a_unit() {
        let look = |reads: u64| {
            let space = json!({"block_size": 4096, "blocks": 1024, "free": 512, "inodes": 100, "free_inodes": 75});
            let vfs =
                json!({"reads": reads, "read_bytes": reads << 20, "dirty_bytes": 1 << 20, "cached_bytes": 4 << 20});
            json!({"source": "a\u{1b}", "format": "ext4", "uptime_s": 90.0, "vfs": vfs, "space": space})
        };
        let now = look(3);
        let rates = rates(&look(1), &now, 1.0);
        assert!(!rates.iter().any(|rate| GAUGES.contains(&rate.name.as_str())));
        assert_eq!((&gauges(&now)["dirty_bytes"], &gauges(&now)["space"]["free"]), (&json!(1 << 20), &json!(512)));
        let screen = screen(&now, &rates, &[], &[], 1.0);
        assert!(screen.contains("2.0 MiB of 4.0 MiB") && screen.contains("25 of 100"), "{screen}");
        assert!(screen.contains(&format!("[{}{}]", "#".repeat(BAR / 2), ".".repeat(BAR / 2))), "{screen}");
        assert!(screen.contains("3.0 MiB") && !screen.contains('\u{1b}'), "{screen}");
        assert_eq!(bar("x", 7, 0, ""), format!("x        [{}]        -  \n", ".".repeat(BAR)));
    }
}
