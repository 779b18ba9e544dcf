//! The text of `.moafs/stats`.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use moafs_fuse::{OpTime, OpTimes};
use moafs_vfs::counters::Counters;
use moafs_vfs::{Format, Vfs};
use serde::Serialize;
use serde_json::Value;

use crate::control::{Audience, Text};
use crate::log::{Failures, Log};
use crate::swap::{KernelSwap, SwapState, SwapStatus};

/// Counters of the layers below vfs, from the code that opened them.
pub type MoreCounters = Box<dyn Fn() -> Value + Send + Sync>;

/// The contents of `.moafs/stats`.
#[derive(Debug, Serialize)]
struct Stats {
    version: &'static str,
    pid: u32,
    /// Null for users other than root and the owner of the mount, as are `target`, `face` and `options`.
    source: Option<PathBuf>,
    /// First byte of the volume on the source.
    first_byte: u64,
    target: Option<PathBuf>,
    /// The source in the kernel's mount table, in words.
    face: Option<String>,
    /// The transport of requests: `uring` or `dev`.
    transport: Option<&'static str>,
    options: Option<Vec<String>>,
    uptime_s: f64,
    format: &'static str,
    label: String,
    space: Space,
    vfs: Counters,
    /// Counters of the format's engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<Value>,
    disk: Value,
    /// The kernel's requests by operation, with the time that serving them took.
    operations: Vec<Operation>,
    /// Status of the swap, while it is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<SwapStatus>,
    /// True if the volume takes no changes.
    read_only: bool,
    /// The error that made the volume read-only.
    failed: Option<String>,
    failures: Failures,
}

#[derive(Debug, Serialize)]
struct Operation {
    verb: String,
    requests: u64,
    ns: u64,
}

#[derive(Debug, Serialize)]
struct Space {
    block_size: u32,
    blocks: u64,
    free: u64,
    available: u64,
    inodes: u64,
    free_inodes: u64,
}

/// The facts that are known once the kernel has agreed to the mount.
pub(crate) struct AboutSession {
    pub(crate) transport: &'static str,
    /// Words about a kernel that does not pass `sync` on.
    pub(crate) no_sync: Option<String>,
    pub(crate) times: Arc<OpTimes>,
}

impl AboutSession {
    fn operations(&self) -> Vec<Operation> {
        let spent = self.times.spent().into_iter();
        spent.map(|OpTime { operation: verb, requests, ns }| Operation { verb, requests, ns }).collect()
    }
}

/// The facts that do not change while the mount lives.
pub(crate) struct About {
    pub(crate) source: PathBuf,
    pub(crate) first_byte: u64,
    pub(crate) target: PathBuf,
    pub(crate) face: String,
    pub(crate) options: Vec<String>,
    pub(crate) session: Arc<OnceLock<AboutSession>>,
    pub(crate) disk: MoreCounters,
    pub(crate) engine: Option<MoreCounters>,
    pub(crate) log: Arc<Log>,
}

impl About {
    fn face_in_words(&self) -> String {
        let no_sync = self.session.get().and_then(|session| session.no_sync.as_deref());
        no_sync.map_or_else(|| self.face.clone(), |words| format!("{}; {words}", self.face))
    }
}

/// Returns the function that makes the text of `.moafs/stats` at a look-up.
pub(crate) fn text<F: Format>(vfs: Vfs<F>, swap: Arc<KernelSwap<F>>, about: About) -> Text {
    let since = Instant::now();
    Box::new(move |audience| {
        let trusted = audience == Audience::Owner;
        let (shape, space) = (vfs.shape(), vfs.stat_fs());
        let session = about.session.get();
        let stats = Stats {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            source: trusted.then(|| about.source.clone()),
            first_byte: about.first_byte,
            target: trusted.then(|| about.target.clone()),
            face: trusted.then(|| about.face_in_words()),
            transport: session.map(|session| session.transport),
            options: trusted.then(|| about.options.clone()),
            uptime_s: since.elapsed().as_secs_f64(),
            format: shape.format,
            label: shape.label.clone(),
            space: Space {
                block_size: space.block_size,
                blocks: space.blocks,
                free: space.free,
                available: space.available,
                inodes: space.inodes,
                free_inodes: space.free_inodes,
            },
            vfs: vfs.counters(),
            engine: about.engine.as_ref().map(|counters| counters()),
            disk: (about.disk)(),
            operations: session.map_or_else(Vec::new, AboutSession::operations),
            swap: Some(swap.status()).filter(|status| status.state != SwapState::Off),
            read_only: vfs.check_writable().is_err(),
            failed: vfs.failed(),
            failures: about.log.failures(),
        };
        let mut text = serde_json::to_vec_pretty(&stats)
            .unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}").into_bytes());
        text.push(b'\n');
        text
    })
}
