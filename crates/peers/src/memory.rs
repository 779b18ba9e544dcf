//! A machine with less memory: a memory control group that holds the workload and the daemon it
//! mounts. The page cache of a kernel file system is charged to the process that touches a page
//! first: the workload. Our daemon is in the group itself.
//!
//! Version 1 of the memory controller only. Under version 2 the kernel also scales `vm.dirty_bytes`
//! by the group's share of all memory: the limit of dirty memory would no longer be what is stated.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{PeersError, Result};

const CONTROLLER: &str = "/sys/fs/cgroup/memory";
const PROCESSES: &str = "cgroup.procs";

/// A group with a memory limit; removed when the value is dropped, after every process has left it.
#[derive(Debug)]
pub(crate) struct MemoryGroup {
    dir: PathBuf,
}

impl MemoryGroup {
    /// Makes a group of at most `bytes` bytes.
    pub(crate) fn new(bytes: u64) -> Result<MemoryGroup> {
        let limit = "memory.limit_in_bytes";
        if !Path::new(CONTROLLER).join(limit).exists() {
            let what = format!(
                "the memory controller of cgroup version 1 ({CONTROLLER}) for --memory; --memory 0 sets no limit"
            );
            return Err(PeersError::Needs(what));
        }
        let dir = Path::new(CONTROLLER).join(format!("moafs-peers-{}", std::process::id()));
        fs::create_dir(&dir).map_err(PeersError::host("making", &dir))?;
        let group = MemoryGroup { dir };
        let path = group.dir.join(limit);
        fs::write(&path, bytes.to_string()).map_err(PeersError::host("setting", &path))?;
        Ok(group)
    }

    /// Moves this process, and the processes it starts from now on, into the group until the
    /// returned value is dropped.
    pub(crate) fn enter(&self) -> Result<Inside> {
        let inside = Inside { home: home()? };
        move_to(&self.dir)?;
        Ok(inside)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.dir) {
            eprintln!("moafs lab: removing {}: {error}", self.dir.display());
        }
    }
}

/// Membership of this process in the group; when it is dropped, the process returns to the group it
/// was in before.
#[derive(Debug)]
pub(crate) struct Inside {
    home: PathBuf,
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Err(error) = move_to(&self.home) {
            eprintln!("moafs lab: {error}");
        }
    }
}

fn move_to(group: &Path) -> Result<()> {
    let path = group.join(PROCESSES);
    fs::write(&path, std::process::id().to_string()).map_err(PeersError::host("moving this process to", &path))
}

/// Returns the directory of the group that this process is in.
fn home() -> Result<PathBuf> {
    let table = Path::new("/proc/self/cgroup");
    let text = fs::read_to_string(table).map_err(PeersError::host("reading", table))?;
    let path = group_of(&text).unwrap_or_default();
    Ok(Path::new(CONTROLLER).join(path))
}

/// Returns the path in the memory controller's line, `number:controllers:/path`, without its
/// leading slash.
fn group_of(table: &str) -> Option<&str> {
    let mut lines = table.lines().map(|line| line.splitn(3, ':'));
    let path = lines.find_map(|mut parts| {
        let controllers = parts.nth(1)?;
        controllers.split(',').any(|name| name == "memory").then(|| parts.next())?
    })?;
    Some(path.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_the_memory_controller_is_found() {
        let table = "9:cpuset:/a\n5:cpu,memory:/user/1\n0::/init.scope\n";
        assert_eq!(group_of(table), Some("user/1"));
        assert_eq!(group_of("0::/init.scope\n"), None);
    }

    #[test]
    fn a_group_is_entered_and_left_and_goes() {
        let group = match MemoryGroup::new(64 << 20) {
            Ok(group) => group,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let before = home().unwrap();
        let inside = group.enter().unwrap();
        assert_eq!(home().unwrap(), group.dir);
        drop(inside);
        assert_eq!(home().unwrap(), before);
        let dir = group.dir.clone();
        drop(group);
        assert!(!dir.exists());
    }
}
