//! `moafs top`: shows the present activity of a mount.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;

use crate::error::Result;
use crate::{output, stat};

/// Show the activity of a mount at regular intervals
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs top /mnt                                until Ctrl-C
  moafs top --interval 0.5 --count 10 /mnt")]
pub(crate) struct TopArgs {
    /// A directory of the mount
    dir: PathBuf,
    /// Seconds between two reports
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// Number of reports (default: no limit)
    #[arg(short = 'n', long)]
    count: Option<u64>,
    /// Print one JSON object per report, with the rates of the counters that changed
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    let secs: Option<f64> = text.parse().ok().filter(|secs| (0.05..=3600.0).contains(secs));
    secs.ok_or_else(|| "give seconds between 0.05 and 3600".to_owned())
}

/// A counter of the volume and its growth.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
struct Rate {
    name: String,
    total: u64,
    per_s: f64,
}

impl TopArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut before = (Instant::now(), stat::of_mount(&self.dir)?);
        let mut looks = 0;
        while self.count.is_none_or(|count| looks < count) {
            std::thread::sleep(Duration::from_secs_f64(self.interval));
            let now = (Instant::now(), stat::of_mount(&self.dir)?);
            let rates = rates(&before.1, &now.1, (now.0 - before.0).as_secs_f64());
            if self.json {
                output::print(format!("{}\n", serde_json::json!({ "rates": rates })).as_bytes())?;
            } else {
                output::print(screen(&now.1, &rates).as_bytes())?;
            }
            before = now;
            looks += 1;
        }
        Ok(ExitCode::SUCCESS)
    }
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
            let per_s = total.saturating_sub(was) as f64 / secs;
            rates.push(Rate { name: format!("{prefix}{name}"), total, per_s });
        }
    }
    for verb in ["read", "write", "discard"] {
        for field in ["requests", "bytes"] {
            let (total, was) = (disk_total(now, verb, field), disk_total(before, verb, field));
            let per_s = total.saturating_sub(was) as f64 / secs;
            rates.push(Rate { name: format!("disk.{verb}_{field}"), total, per_s });
        }
    }
    rates
}

fn disk_total(stats: &Value, verb: &str, field: &str) -> u64 {
    let counts = stats["disk"]["counts"].as_array().into_iter().flatten();
    counts.filter(|count| count["verb"] == verb).filter_map(|count| count[field].as_u64()).sum()
}

fn screen(stats: &Value, rates: &[Rate]) -> String {
    let clear = if io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    let text = |name: &str| stats[name].as_str().unwrap_or("-").to_owned();
    let mut screen = format!("{clear}{} on {} ({})\n\n", text("source"), text("target"), text("transport"));
    for rate in rates.iter().filter(|rate| rate.total > 0) {
        screen += &format!("{:<28} {:>16} {:>14.1}/s\n", rate.name, rate.total, rate.per_s);
    }
    screen + "\n"
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
            json!({"vfs": {"reads": reads}, "disk": {"counts": counts}, "swap": swap})
        };
        let rates = rates(&look(10, 5), &look(30, 6), 2.0);
        let of = |name: &str| rates.iter().find(|rate| rate.name == name).map(|rate| (rate.total, rate.per_s));
        assert_eq!(of("reads"), Some((30, 10.0)));
        assert_eq!(of("swap.pages_out"), Some((60, 20.0)));
        assert_eq!(of("disk.write_requests"), Some((6, 0.5)));
        assert_eq!(of("disk.write_bytes"), Some((6 * 4096, 2048.0)));
    }
}
