//! The place of a file: on the host, or on a volume (`IMAGE:PATH`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::{CliError, Result};
use crate::partition;

/// A place given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A path of the host.
    Host(PathBuf),
    /// A path inside a volume.
    Volume(Inside),
}

/// A path inside a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inside {
    pub(crate) image: PathBuf,
    /// Path, always read from the volume's root.
    pub(crate) path: Vec<u8>,
}

impl Place {
    /// Parses `IMAGE:PATH` where IMAGE is a file or block device; everything else is a host path. A
    /// host path that looks like `IMAGE:PATH` is written `./a:b`.
    pub(crate) fn parse(text: &OsStr) -> Place {
        let bytes = text.as_bytes();
        let colons = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':').map(|(at, _)| at);
        let split = colons.into_iter().find(|&at| is_volume(Path::new(OsStr::from_bytes(&bytes[..at]))));
        match split {
            Some(at) if !bytes.starts_with(b"./") || !Path::new(text).exists() => {
                let image = PathBuf::from(OsStr::from_bytes(&bytes[..at]));
                Place::Volume(Inside { image, path: bytes[at + 1..].to_vec() })
            }
            _ => Place::Host(PathBuf::from(text)),
        }
    }
}

fn is_volume(path: &Path) -> bool {
    let (path, _) = partition::split(path);
    path.metadata().is_ok_and(|meta| meta.is_file() || meta.file_type().is_block_device())
}

/// Returns true if a word is the name of an image, without a path on it, or of nothing.
fn is_image_alone(word: &OsStr) -> bool {
    let path = Path::new(word);
    is_volume(path) && Place::parse(word) == Place::Host(path.into())
        || !path.exists() && !word.as_bytes().contains(&b':')
}

/// Returns true if both names of volumes lead to the same one.
pub(crate) fn is_same_volume(one: &Path, other: &Path) -> bool {
    let id = |name: &Path| {
        let (file, part) = partition::split(name);
        file.metadata().ok().map(|meta| (meta.dev(), meta.ino(), part))
    };
    one == other || (id(one).is_some() && id(one) == id(other))
}

/// Returns true if both names lead to volumes on one image or device, on whatever partitions.
pub(crate) fn is_same_disk(one: &Path, other: &Path) -> bool {
    let id = |name: &Path| partition::split(name).0.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    id(one).is_some() && id(one) == id(other)
}

/// Returns the part of `IMAGE:PATH` before the first colon, without a choice of a partition.
fn image_of(place: &Path) -> PathBuf {
    let bytes = place.as_os_str().as_bytes();
    let end = bytes.iter().position(|byte| *byte == b':').unwrap_or(bytes.len());
    partition::split(Path::new(OsStr::from_bytes(&bytes[..end]))).0
}

impl Inside {
    /// Parses `IMAGE:PATH`, `IMAGE PATH`, or `IMAGE` alone (its root).
    pub(crate) fn parse(first: &OsStr, second: Option<&OsString>) -> Result<Inside> {
        if let Some(path) = second {
            return Ok(Inside { image: first.into(), path: path.as_bytes().to_vec() });
        }
        match Place::parse(first) {
            Place::Volume(inside) => Ok(inside),
            Place::Host(image) if is_volume(&image) => Ok(Inside { image, path: b"/".to_vec() }),
            Place::Host(path) if !image_of(&path).exists() => {
                let missing = std::io::Error::from_raw_os_error(libc::ENOENT);
                Err(CliError::host("opening", &image_of(&path))(missing))
            }
            Place::Host(path) => Err(CliError::Usage(format!(
                "{} is no image file or device; write IMAGE:PATH or IMAGE PATH",
                crate::output::path(&path)
            ))),
        }
    }

    /// Parses any number of `IMAGE:PATH`, or `IMAGE PATH...`.
    pub(crate) fn parse_all(words: &[OsString]) -> Vec<Result<Inside>> {
        let is_path = |word: &OsString| matches!(Place::parse(word), Place::Host(_));
        match words {
            [image, paths @ ..] if !paths.is_empty() && is_image_alone(image) && paths.iter().all(is_path) => {
                paths.iter().map(|path| Inside::parse(image, Some(path))).collect()
            }
            _ => words.iter().map(|word| Inside::parse(word, None)).collect(),
        }
    }

    /// Parses places that have to be on one volume, for the command `name`. They get the same name of the image.
    ///
    /// # Errors
    /// Fails for a place on the host or on another volume, and names `cp`, which does not mind.
    pub(crate) fn parse_on_one(words: &[OsString], name: &str) -> Result<Vec<Inside>> {
        let mut places: Vec<Inside> = Vec::new();
        for (word, place) in words.iter().zip(Inside::parse_all(words)) {
            if place.is_err() && !word.as_bytes().contains(&b':') {
                return Err(CliError::Usage(format!(
                    "{} is on the host, and {name} stays on one volume; `moafs cp` copies from one place to another",
                    crate::output::path(Path::new(word))
                )));
            }
            let place = place?;
            places.push(match places.first() {
                Some(first) => place.on_volume_of(first, name)?,
                None => place,
            });
        }
        Ok(places)
    }

    /// Returns this place with the name that `first` gives to their volume, for the command `name`.
    ///
    /// # Errors
    /// Fails if they are on different volumes.
    pub(crate) fn on_volume_of(self, first: &Inside, name: &str) -> Result<Inside> {
        if is_same_volume(&first.image, &self.image) {
            return Ok(Inside { image: first.image.clone(), ..self });
        }
        Err(CliError::Usage(format!(
            "{} and {} are on different volumes, and {name} stays on one; `moafs cp` copies between them",
            first.describe(),
            self.describe()
        )))
    }

    /// Returns the directory and the last component; `None` for the root.
    pub(crate) fn split(&self) -> Option<(&[u8], &[u8])> {
        let end = self.path.iter().rposition(|&byte| byte != b'/')? + 1;
        let path = &self.path[..end];
        Some(match path.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (b"", path),
        })
    }

    /// Returns the place as text for messages.
    pub(crate) fn describe(&self) -> String {
        format!("{}:{}", crate::output::path(&self.image), crate::output::name(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_after_an_image_opens_a_volume() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = [file.path().as_os_str().as_bytes(), b":/a:b"].concat();
        let Place::Volume(inside) = Place::parse(OsStr::from_bytes(&text)) else { panic!("not a volume") };
        assert_eq!((inside.image.as_path(), inside.path.as_slice()), (file.path(), &b"/a:b"[..]));
        assert_eq!(Place::parse(OsStr::new("no/such:/a")), Place::Host("no/such:/a".into()));
        assert_eq!(Place::parse(OsStr::new("/tmp")), Place::Host("/tmp".into()));
    }

    #[test]
    fn several_paths_are_on_one_image_that_comes_first_or_each_on_its_own() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let image = file.path().to_str().unwrap();
        let inside = |path: &str| Inside { image: image.into(), path: path.into() };
        let all = |words: &[String]| -> Vec<Option<Inside>> {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            Inside::parse_all(&words).into_iter().map(Result::ok).collect()
        };
        let (one, two) = (format!("{image}:/a"), format!("{image}:/b"));
        assert_eq!(all(&[image.into(), "/a".into(), "b".into()]), [Some(inside("/a")), Some(inside("b"))]);
        assert_eq!(all(&[one.clone(), "/none".into(), two.clone()]), [Some(inside("/a")), None, Some(inside("/b"))]);
        assert_eq!(all(&[image.into(), two]), [Some(inside("/")), Some(inside("/b"))]);
        assert_eq!(all(&[image.into()]), [Some(inside("/"))]);
        let missing = Inside { image: "/no/such".into(), path: b"/a".to_vec() };
        assert_eq!(all(&["/no/such".into(), "/a".into()]), [Some(missing)]);
    }

    #[test]
    fn paths_are_split_before_their_last_component() {
        let split = |path: &str| {
            let inside = Inside { image: PathBuf::new(), path: path.into() };
            inside
                .split()
                .map(|(dir, name)| (String::from_utf8_lossy(dir).into(), String::from_utf8_lossy(name).into()))
        };
        let pair = |dir: &str, name: &str| Some((dir.to_owned(), name.to_owned()));
        assert_eq!(split("/a/b"), pair("/a", "b"));
        assert_eq!(split("/a/b//"), pair("/a", "b"));
        assert_eq!(split("a"), pair("", "a"));
        assert_eq!(split("/"), None);
        assert_eq!(split(""), None);
    }
}
