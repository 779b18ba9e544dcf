//! The conditions that a result depends on besides the code: machine, kernel, tools, commit, load.

use std::process::Command;

use crate::process;

/// Returns lines of `name: value` about this machine and checkout. Values that cannot be found out
/// are left out.
pub(crate) fn describe() -> Vec<(&'static str, String)> {
    let mut facts = vec![("processors", processors())];
    facts.extend(field("/proc/meminfo", "MemTotal").map(|memory| ("memory", memory)));
    facts.extend(read("/proc/sys/kernel/osrelease").map(|release| ("kernel", format!("Linux {release}"))));
    facts.extend(said(Command::new("rustc").arg("--version")).map(|version| ("compiler", version)));
    facts.extend(version_of("mke2fs").map(|version| ("e2fsprogs", version)));
    facts.extend(commit().map(|commit| ("commit", commit)));
    facts
}

/// Returns the current date and load; the load shows whether the machine had other work.
pub(crate) fn now() -> String {
    let date = said(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"])).unwrap_or_default();
    let load = read("/proc/loadavg").unwrap_or_default();
    let averages: Vec<&str> = load.split(' ').take(3).collect();
    format!("{date}, load {}", averages.join(" "))
}

fn processors() -> String {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let model = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown model".to_owned());
    format!("{count} x {model}")
}

/// Returns the value of the first line `name : value` of a file.
fn field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn read(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

fn said(command: &mut Command) -> Option<String> {
    Some(process::run(command).ok()?.trim().to_owned())
}

/// Runs a program for its version, on standard error: e2fsprogs print it there.
fn version_of(program: &str) -> Option<String> {
    let output = Command::new(program).arg("-V").output().ok()?;
    Some(String::from_utf8_lossy(&output.stderr).lines().next()?.to_owned())
}

/// Returns the commit that is checked out, and says whether files differ from it.
fn commit() -> Option<String> {
    let commit = said(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]))?;
    let changed = said(Command::new("git").args(["status", "--porcelain", "--untracked-files=no"]))?;
    Some(if changed.is_empty() { commit } else { format!("{commit}, with changes") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described() {
        let facts = describe();
        assert!(["processors", "memory", "kernel"].iter().all(|name| facts.iter().any(|(fact, _)| fact == name)));
    }
}
