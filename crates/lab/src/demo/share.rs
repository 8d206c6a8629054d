//! A share: `sanstone serve` in its own process, as if on its own machine. It prints its portal once it
//! serves, and exits when our end of its standard input closes, so that it never outlives us.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Seek, SeekFrom},
    net::SocketAddr,
    path::Path,
    process::{Child, Stdio},
};

use crate::{LabError, LabResult, programs::own_command};

/// Maximum number of shares in one run: each is a process.
pub const SHARES_MAX: usize = 16;

/// A running share.
pub(super) struct RunningShare {
    index: usize,
    child: Child,
    /// Its output, in a file without a name.
    log: File,
}

impl RunningShare {
    /// Starts share `index` with `configuration`, whose relative paths start from `directory`.
    pub(super) fn start(
        binary: &Path,
        directory: &super::Directory,
        index: usize,
        configuration: &str,
    ) -> LabResult<RunningShare> {
        let log = directory.nameless_file()?;
        let path = directory.path().join(format!("share-{index}.toml"));
        let file_error = |source| LabError::File {
            path: path.clone(),
            source,
        };
        fs::write(&path, configuration).map_err(file_error)?;
        let stderr = log.try_clone().map_err(file_error)?;
        let child = own_command(binary)
            .args(["--log", "warn", "serve", "--supervised", "--config"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .map_err(|source| LabError::File {
                path: binary.to_owned(),
                source,
            })?;
        Ok(RunningShare { index, child, log })
    }

    /// Waits until it serves; returns its portal.
    pub(super) fn portal(&mut self) -> LabResult<SocketAddr> {
        let mut line = String::new();
        if let Some(stdout) = self.child.stdout.take() {
            // Returns when the line is complete or the process exits.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        line.trim().parse().map_err(|_| {
            let said = self.said();
            LabError::Demo(format!("share {} did not start: {said}", self.index))
        })
    }

    fn said(&mut self) -> String {
        let mut said = String::new();
        let _ = self.log.seek(SeekFrom::Start(0));
        let _ = self.log.read_to_string(&mut said);
        let said = said.trim();
        if said.is_empty() {
            "it printed nothing".into()
        } else {
            said.into()
        }
    }
}

impl Drop for RunningShare {
    fn drop(&mut self) {
        // Its data is discarded with it, so there is nothing to shut down cleanly.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_share_that_ends_at_once_is_reported_with_what_it_said() {
        let directory = super::super::Directory::new_in(&std::env::temp_dir()).unwrap();
        // `ls` rejects the options on standard error and exits.
        let ls = engine::programs::find("ls").unwrap();
        let mut share = RunningShare::start(&ls, &directory, 3, "").unwrap();
        let error = share.portal().unwrap_err().to_string();
        assert!(
            error.contains("share 3 did not start: ") && error.contains("ls: "),
            "{error}"
        );
        let missing = Path::new("/nowhere/sanstone");
        let error = RunningShare::start(missing, &directory, 0, "")
            .err()
            .unwrap();
        assert!(error.to_string().contains("/nowhere/sanstone"), "{error}");
    }
}
