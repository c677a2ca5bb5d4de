//! The token with which HTTP shows and does everything.

use std::{
    fs::OpenOptions,
    hint::black_box,
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use nix::unistd::Uid;

use super::error::ServeError;

/// Bytes of the shortest token: fewer could be guessed.
const MIN_TOKEN_BYTES: usize = 16;
/// Bytes of the longest.
const MAX_TOKEN_BYTES: u64 = 4096;

/// A token. Not shown in logs.
pub(super) struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Token")
    }
}

impl Token {
    /// Reads it from a file that only its owner can read.
    pub(super) fn read(path: &Path) -> Result<Self, ServeError> {
        let token = secret(path)?;
        let refused = |why: String| ServeError::Token { path: path.to_owned(), why };
        if token.contains(&b' ') {
            return Err(refused("a token is one line of letters, digits and signs".to_owned()));
        }
        if token.len() < MIN_TOKEN_BYTES {
            return Err(refused(format!("a token has {MIN_TOKEN_BYTES} characters or more")));
        }
        Ok(Self(token))
    }

    /// Whether this is the token. Takes the same time wherever it differs.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        let differs = |sum: u8, (own, other): (&u8, &u8)| sum | black_box(own ^ other);
        self.0.len() == given.len() && self.0.iter().zip(given).fold(0, differs) == 0
    }
}

/// The line of a file that only its owner can read: root, or this process's user.
pub(crate) fn secret(path: &Path) -> Result<Vec<u8>, ServeError> {
    let refused = |why: String| ServeError::Token { path: path.to_owned(), why };
    let failed = |error: io::Error| refused(format!("cannot read it: {error}"));
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(refused("it is not a regular file".to_owned()));
    }
    let (uid, mode) = (about.uid(), about.mode() & 0o7777);
    if uid != 0 && uid != Uid::effective().as_raw() {
        return Err(refused(format!("it belongs to user {uid}; chown it to root")));
    }
    if mode & 0o077 != 0 {
        return Err(refused(format!("others can use it (mode {mode:04o}); chmod it to 0600")));
    }
    let mut text = Vec::new();
    file.take(MAX_TOKEN_BYTES + 1).read_to_end(&mut text).map_err(failed)?;
    let secret = text.trim_ascii().to_vec();
    let is_shown = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    if text.len() as u64 > MAX_TOKEN_BYTES || !secret.iter().all(is_shown) {
        return Err(refused("it is not one line of letters, digits and signs".to_owned()));
    }
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt as _,
    };

    use super::*;

    /// Only the whole token is the token; a file that others can read, or with nothing in it, has none.
    #[test]
    fn files_are_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        for (text, mode, refused) in [
            ("0123456789abcdef\n", 0o600, None),
            ("0123456789abcdef\n", 0o400, None),
            ("0123456789abcdef\n", 0o640, Some("mode 0640")),
            ("0123456789abcdef\n", 0o604, Some("chmod it to 0600")),
            ("short\n", 0o600, Some("16 characters")),
            ("0123456789 abcdef\n", 0o600, Some("one line")),
        ] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            match (Token::read(&path), refused) {
                (Ok(token), None) => {
                    assert!(token.is(b"0123456789abcdef"));
                    for wrong in ["", "0123456789abcdeg", "0123456789abcde", "0123456789abcdef0"] {
                        assert!(!token.is(wrong.as_bytes()), "{wrong}");
                    }
                    assert!(!format!("{token:?}").contains("0123"));
                }
                (Err(error), Some(why)) => assert!(error.to_string().contains(why), "{error}"),
                (got, _) => panic!("{text:?} {mode:o}: {got:?}"),
            }
            fs::remove_file(&path).unwrap();
        }
        assert!(Token::read(directory.path()).unwrap_err().to_string().contains("regular file"));
        assert!(Token::read(&path).is_err());
    }
}
