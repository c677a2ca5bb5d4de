//! Containers by the names of control groups. Text alone.

/// The container that a control group was made for: `docker-ID.scope`, `cri-containerd-ID.scope`,
/// `crio-ID`, `libpod-payload-ID`, `…:cri-containerd:ID`, or the bare id. Ids are 64 hexadecimal digits.
#[must_use]
pub fn container_id(segment: &str) -> Option<&str> {
    let name = segment.strip_suffix(".scope").unwrap_or(segment);
    let at = name.rfind(['-', ':']).map_or(0, |at| at + 1);
    let (runtime, id) = name.split_at_checked(at)?;
    let is_id = id.len() == 64 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    // conmon watches over a container from outside; a pod of podman's is a slice of containers, not one.
    (is_id && !runtime.contains("conmon") && !runtime.ends_with("pod_")).then_some(id)
}

/// The first hierarchy that knows one, and in it the innermost.
pub(crate) fn of_text(text: &str) -> Option<&str> {
    text.lines().find_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        path.rsplit('/').find_map(container_id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The innermost container of the first hierarchy that has any.
    #[test]
    fn containers() {
        let (outer, inner) = ("a".repeat(64), "0123456789abcdef".repeat(4));
        let text = format!(
            "9:cpu:/x\n4:memory:/system.slice/docker-{outer}.scope/kubepods/crio-{inner}\n0::/\n"
        );
        assert_eq!(of_text(&text), Some(inner.as_str()));
        for none in ["", "0::/", "0", "0::/a/b.service", "0::/libpod-conmon-x"] {
            assert_eq!(of_text(none), None, "{none}");
        }
        assert_eq!(container_id(&format!("libpod-conmon-{inner}.scope")), None);
    }
}
