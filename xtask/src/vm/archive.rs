//! Debian's package archive: what depends on what, and packages downloaded, never installed.
//!
//! A suite that is not the machine's own has its sources, lists and caches in a directory of its own, so that the
//! machine's apt never sees it. apt checks the signatures with the machine's keyring. Called by `kernel` and
//! by `worlds`.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use fs_err as fs;

use crate::work;

/// The keys that sign Debian's suites.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A file, a list or a server that is not there.
const UNREACHABLE: &str = "check that Debian's archive is reachable";

/// A server that does not answer is given up, not waited for.
const BOUNDS: [&str; 3] = [
    "--option=Acquire::Retries=2",
    "--option=Acquire::http::Timeout=30",
    "--option=Acquire::https::Timeout=30",
];

/// What of the machine's configuration another apt must have to reach the archive: proxies, what is checked.
const NEEDED: [&str; 5] = [
    "Acquire::http::",
    "Acquire::https::",
    "Acquire::Check-",
    "Acquire::ForceIP",
    "Acquire::Retries",
];

/// One suite of the archive, or all that the machine's apt knows.
pub(crate) struct Archive {
    /// Where the machine's apt gets it; of the machine's own, nothing.
    pub(crate) address: String,
    /// Lead apt to the lists of another suite; empty for the machine's own.
    options: Vec<String>,
}

impl Archive {
    /// What the machine's apt knows.
    pub(crate) const fn of_machine() -> Self {
        Self { address: String::new(), options: Vec::new() }
    }

    /// Another suite of the archive that the machine uses; its lists are kept in `directory`.
    pub(crate) fn of_suite(directory: &Path, suite: &str) -> Result<Self> {
        let source = directory.join("suite.sources");
        for name in ["lists/partial", "cache/archives/partial"] {
            let path = directory.join(name);
            fs::create_dir_all(&path)?;
        }
        let address = match address_of_machine() {
            Ok(address) => address,
            // Before the first update apt does not know which of its sources is Debian's.
            Err(_) => Self::of_machine().update().and_then(|()| address_of_machine())?,
        };
        fs::write(&source, sources(&address, suite))?;
        let options = [
            ("Dir::Etc::sourcelist", source),
            ("Dir::Etc::sourceparts", "/dev/null".into()),
            ("Dir::State::lists", directory.join("lists")),
            ("Dir::Cache", directory.join("cache")),
        ];
        let options = options.map(|(name, path)| format!("--option={name}={}", path.display()));
        let options = options.into_iter().chain(BOUNDS.map(str::to_owned)).collect();
        Ok(Self { address, options })
    }

    /// The part of the machine's configuration that reaching the archive takes, as apt reads it.
    pub(crate) fn options_of_machine() -> Result<String> {
        let mut dump = Command::new("apt-config");
        dump.args(["dump", "--no-empty", "Acquire"]);
        Ok(needed(&work::read("ask for apt's configuration", "is apt there?", &mut dump)?))
    }

    /// Fetches the package lists.
    pub(crate) fn update(&self) -> Result<()> {
        let mut apt = match self.options[..] {
            [] => work::as_root("apt-get", &[]),
            _ => Command::new("apt-get"),
        };
        // An old list must not pass for a new one, which apt takes for success otherwise.
        apt.args(&self.options).args(["update", "-q", "--error-on=any"]).stdout(std::io::stderr());
        work::run("update the package lists", UNREACHABLE, &mut apt)
    }

    /// Those of some packages that the suite does not have.
    pub(crate) fn lacking<'a>(&self, packages: &[&'a str]) -> Result<Vec<&'a str>> {
        let mut apt = Command::new("apt-cache");
        apt.args(&self.options).arg("dumpavail");
        let known = work::read("ask for packages", UNREACHABLE, &mut apt)?;
        let known: HashSet<_> =
            known.lines().filter_map(|line| line.strip_prefix("Package: ")).collect();
        Ok(packages.iter().copied().filter(|package| !known.contains(package)).collect())
    }

    /// The packages that one depends on.
    pub(super) fn depends(&self, package: &str) -> Result<Vec<String>> {
        let mut apt = Command::new("apt-cache");
        apt.args(&self.options).args(["depends", "--important", package]);
        Ok(dependencies(&work::read("ask for dependencies", UNREACHABLE, &mut apt)?))
    }

    /// Downloads packages and unpacks them into a directory, which holds no package then.
    pub(super) fn unpack(&self, packages: &[String], directory: &Path) -> Result<()> {
        let mut apt = Command::new("apt-get");
        apt.args(&self.options).args(["download", "-q"]).args(packages);
        apt.current_dir(directory).stdout(std::io::stderr());
        work::run("download packages", UNREACHABLE, &mut apt)?;
        for package in work::files(directory, "deb")? {
            let mut dpkg = Command::new("dpkg");
            dpkg.arg("-x").arg(&package).arg(directory);
            work::run("unpack a package", "is the disk full?", &mut dpkg)?;
            fs::remove_file(&package)?;
        }
        Ok(())
    }
}

/// The needed lines of `apt-config dump`.
fn needed(dump: &str) -> String {
    let is_needed = |line: &&str| NEEDED.iter().any(|needed| line.starts_with(needed));
    dump.lines().filter(is_needed).flat_map(|line| [line, "\n"]).collect()
}

/// The direct dependencies in the output of `apt-cache depends`: alternatives as well, virtual packages not.
fn dependencies(depends: &str) -> Vec<String> {
    let lines = depends.lines().map(|line| line.trim_start_matches([' ', '|']));
    let named = lines.filter_map(|line| line.strip_prefix("Depends: "));
    named.filter(|name| !name.starts_with('<')).map(str::to_owned).collect()
}

/// Where the machine's apt gets Debian's main packages.
fn address_of_machine() -> Result<String> {
    let mut apt = Command::new("apt-get");
    apt.args(["indextargets", "--format", "$(ORIGIN) $(LABEL) $(COMPONENT) $(REPO_URI)"]);
    apt.arg("Created-By: Packages");
    let targets = work::read("ask for the archive's address", UNREACHABLE, &mut apt)?;
    address(&targets).context("no source of apt is Debian's; check /etc/apt/sources.list.d")
}

/// The address in lines of origin, label, component and address; security updates have another label.
fn address(targets: &str) -> Option<String> {
    targets.lines().find_map(|line| line.strip_prefix("Debian Debian main ")).map(str::to_owned)
}

/// A sources file; of a suite's indexes only the packages are fetched.
fn sources(address: &str, suite: &str) -> String {
    format!(
        "Types: deb\nURIs: {address}\nSuites: {suite}\nComponents: main\nArchitectures: amd64\n\
         Targets: Packages\nSigned-By: {KEYRING}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::{address, dependencies, needed};

    /// Alternatives and recommendations, as apt-cache writes them for a split kernel package.
    #[test]
    fn direct_dependencies() {
        let text = "linux-image-7.2.13+deb14-cloud-amd64\n  PreDepends: linux-base\n |Depends: dracut\n  \
                    Depends: <linux-initramfs-tool>\n    dracut\n    tiny-initramfs\n  \
                    Depends: linux-binary-7.2.13+deb14-cloud-amd64\n  Recommends: apparmor\n";
        assert_eq!(dependencies(text), ["dracut", "linux-binary-7.2.13+deb14-cloud-amd64"]);
    }

    /// Proxies are needed elsewhere, what is fetched is not.
    #[test]
    fn needed_options() {
        let proxy = "Acquire::http::Proxy \"http://proxy.test:3128\";\n";
        let dump =
            format!("Acquire::cdrom::mount \"/media\";\n{proxy}Acquire::GzipIndexes \"1\";\n");
        assert_eq!(needed(&dump), proxy);
    }

    /// Other archives and Debian's security updates have other suites; before the first update nothing is known.
    #[test]
    fn address_of_debian() {
        let text = "Other Debian main http://other.test/\n\
                    Debian Debian-Security main http://mirror.test/debian-security/\n\
                    Debian Debian main http://mirror.test/debian/\n";
        assert_eq!(address(text).as_deref(), Some("http://mirror.test/debian/"));
        assert_eq!(address("$(ORIGIN) $(LABEL) main http://mirror.test/debian/\n"), None);
    }
}
