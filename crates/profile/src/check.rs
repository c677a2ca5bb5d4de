//! What a profile must be as a whole, beyond the shape of its parts.
//!
//! A list of rules, each of which examines the finished [`Profile`] and, for its places, at the tables as
//! they were written. The last one compiles every probe once, so that what can never fit into a spec is
//! refused here, with its line, and not only when a process is attached to. Called by `parse`.

use std::hash::{DefaultHasher, Hash, Hasher};

use drainprof_common::spec::{Kind, Role};
use toml::Spanned;

use super::{
    compile,
    error::{ProfileError, Text, line_and_column},
    keys::Key,
    model::{Address, Expr, Level, Phase, Probe, Profile},
    raw::RawProbe,
    resolver::Resolver,
};

type Verdict = Result<(), ProfileError>;

/// A profile with the places of what was written.
struct Checked<'a> {
    place: Text<'a>,
    profile: &'a Profile,
    kind: &'a Spanned<String>,
    implicit: Option<&'a Spanned<bool>>,
    raw: &'a [Spanned<RawProbe>],
}

/// Checks a profile; the first rule that it breaks is the error.
pub(super) fn check(
    place: Text<'_>,
    profile: &Profile,
    kind: &Spanned<String>,
    implicit: Option<&Spanned<bool>>,
    raw: &[Spanned<RawProbe>],
) -> Verdict {
    let checked = Checked { place, profile, kind, implicit, raw };
    for (probe, raw) in checked.probes() {
        checked.keys_fit_role(probe, raw)?;
        checked.role_has_its_keys(probe, raw)?;
        checked.place_fits(probe, raw)?;
    }
    checked.no_duplicates()?;
    checked.groups_agree()?;
    checked.instances_agree()?;
    checked.kind_has_its_probes()?;
    checked.implicit_fits()?;
    checked.compiles()
}

impl Checked<'_> {
    fn probes(&self) -> impl Iterator<Item = (&Probe, &RawProbe)> {
        self.profile.probes.iter().zip(self.raw.iter().map(Spanned::get_ref))
    }

    fn having(&self, role: Role) -> impl Iterator<Item = (&Probe, &RawProbe)> {
        self.probes().filter(move |(probe, _)| probe.role == role)
    }

    fn at_role(&self, raw: &RawProbe, message: impl Into<String>) -> ProfileError {
        self.place.fail(raw.role.span().start, message)
    }

    /// An expression that its role has no use for is a mistake in one of the two.
    fn keys_fit_role(&self, probe: &Probe, raw: &RawProbe) -> Verdict {
        let role = probe.role;
        let mut written = raw.expressions.iter();
        let Some((key, text)) = written.find(|(key, _)| !key.is_used_by(role)) else {
            return Ok(());
        };
        let used = Key::all().filter(|key| key.is_expression() && key.is_used_by(role));
        let used: Vec<_> = used.map(Key::name).collect();
        let message = format!("`{key}` means nothing on the role `{}`", role.name());
        let error = self.place.fail(text.span().start, message);
        Err(error.with_hint(format!("this role takes {}", used.join(", "))))
    }

    fn role_has_its_keys(&self, probe: &Probe, raw: &RawProbe) -> Verdict {
        let role = probe.role;
        let lacks = |key: &Key| key.is_required_by(role) && !probe.has(*key);
        let missing = match Key::values().find(lacks) {
            Some(key) => format!("`{key}`"),
            None if matches!(role, Role::Alloc | Role::Free)
                && !probe.has(Key::Granule)
                && !probe.has(Key::Object) =>
            {
                "`granule` or `object`".to_owned()
            }
            None => return Ok(()),
        };
        Err(self.at_role(raw, format!("the role `{}` needs {missing}", role.name())))
    }

    fn place_fits(&self, probe: &Probe, raw: &RawProbe) -> Verdict {
        let at = raw.at.span().start;
        match &probe.at {
            Address::Offset(_) if self.profile.rule.build_id.is_empty() => {
                let error = self.place.fail(at, "an offset holds for one build only");
                Err(error.with_hint("name the build in `match.build_id`"))
            }
            Address::Usdt { .. } if probe.phase == Phase::Return => {
                let error = self.place.fail(at, "a USDT probe has no return");
                Err(error
                    .with_hint("do without `ret`, `phase = \"return\"` and the role `realloc`"))
            }
            Address::Usdt { .. } if probe.expressions.values().any(Expr::names_caller) => {
                let error = self.place.fail(at, "a USDT probe has no return address");
                Err(error.with_hint("do without `caller`"))
            }
            _ => Ok(()),
        }
    }

    /// The same hit must not be counted twice. Of a group one is placed: there an earlier one may be at the same
    /// place, if it may drop out.
    fn no_duplicates(&self) -> Verdict {
        for (index, (probe, raw)) in self.probes().enumerate() {
            let instead = |earlier: &Probe| {
                let mut expressions = earlier.expressions.values();
                probe.one_of.is_some()
                    && earlier.one_of == probe.one_of
                    && expressions.any(Expr::names_unknowns)
            };
            let same = |earlier: &&Probe| {
                earlier.role == probe.role
                    && earlier.at == probe.at
                    && earlier.may_meet(probe)
                    && !instead(earlier)
            };
            if self.profile.probes[..index].iter().any(|earlier| same(&earlier)) {
                let message = format!("a second `{}` probe at `{}`", probe.role.name(), probe.at);
                let error = self.place.fail(raw.at.span().start, message);
                return Err(error.with_hint("join the two with `||` in one `when`"));
            }
        }
        Ok(())
    }

    /// Probes of one group stand for one another: whichever is placed, the same is known.
    fn groups_agree(&self) -> Verdict {
        for (index, (probe, raw)) in self.probes().enumerate() {
            let (Some(group), Some(written)) = (&probe.one_of, &raw.one_of) else { continue };
            let of_group = |(other, _): &(&Probe, &RawProbe)| other.one_of == probe.one_of;
            let at = written.span().start;
            if self.probes().filter(of_group).count() < 2 {
                let error = self.place.fail(at, format!("the group `{group}` has one probe only"));
                return Err(
                    error.with_hint("a group has two probes or more, of which one is placed")
                );
            }
            let Some((first, _)) = self.probes().take(index).find(of_group) else { continue };
            let line = line_and_column(self.place.text, first.span.start).0;
            if first.role != probe.role {
                let message = format!(
                    "the group `{group}` is of `{}` probes (line {line}), and this is a `{}` probe",
                    first.role.name(),
                    probe.role.name()
                );
                let hint = "its probes stand for one another: give all of them one role";
                return Err(self.place.fail(at, message).with_hint(hint));
            }
            if let Some(key) = Key::values().find(|key| first.has(*key) != probe.has(*key)) {
                let message = if first.has(key) {
                    format!(
                        "no `{key}`, which the first probe of the group `{group}` (line {line}) has"
                    )
                } else {
                    format!(
                        "`{key}`, which the first probe of the group `{group}` (line {line}) lacks"
                    )
                };
                let at = raw.place(key).map_or(at, |span| span.start);
                let hint = "its probes stand for one another: give all of them the same values";
                return Err(self.place.fail(at, message).with_hint(hint));
            }
        }
        Ok(())
    }

    /// A granule is known by its instance and its id: where only some probes name the instance, the same
    /// granule would be two.
    fn instances_agree(&self) -> Verdict {
        let mut of_granules = self.probes().filter(|(probe, _)| probe.has(Key::Granule));
        let Some((first, _)) = of_granules.next() else { return Ok(()) };
        let named = first.has(Key::Instance);
        match of_granules.find(|(probe, _)| probe.has(Key::Instance) != named) {
            None => Ok(()),
            Some((_, raw)) => {
                let message = "some probes with a `granule` name an `instance` and some do not";
                let hint = "the same granule would be two: name it on all of them, or on none";
                Err(self.at_role(raw, message).with_hint(hint))
            }
        }
    }

    fn kind_has_its_probes(&self) -> Verdict {
        let kind = self.profile.kind;
        let at_kind = |message: &str| self.place.fail(self.kind.span().start, message);
        let lacks = |role| self.having(role).next().is_none();
        if self.profile.probes.is_empty() && !self.profile.structures.is_empty() {
            let message = "a profile without probes is for a census only";
            let is_named = self.profile.on_request;
            let error = || at_kind(message).with_hint("say `on_request = true`");
            return if is_named { Ok(()) } else { Err(error()) };
        }
        if self.profile.probes.is_empty() {
            let error = self.place.fail(self.place.text.len(), "the profile has no probe");
            return Err(error.with_hint("expected at least one `[[probe]]`"));
        }
        if kind == Kind::Drain && lacks(Role::Close) {
            let hint = "the close is the boundary that it is judged by; is it `slab` or `bulk`?";
            return Err(at_kind("a `drain` profile needs a `close` probe").with_hint(hint));
        }
        let decided_at_close = compile::closes_have_live(self.profile);
        if kind == Kind::Drain && !decided_at_close && lacks(Role::Alloc) {
            let hint = "give `live` on every close and reset, or `alloc` and `free` probes";
            return Err(at_kind("nothing says whether a close is drainable").with_hint(hint));
        }
        let counts_only_grow = kind != Kind::Bulk && !decided_at_close && lacks(Role::Free);
        if counts_only_grow && let Some((_, raw)) = self.having(Role::Alloc).next() {
            let message = "there are `alloc` probes but no `free`: live counts could only grow";
            return Err(self.at_role(raw, message).with_hint("add the `free` probes"));
        }
        if let Some((_, raw)) = self.having(Role::Migrate).next() {
            if kind == Kind::Slab {
                let error = self.at_role(raw, "a `slab` granule is closed only once it is empty");
                return Err(
                    error.with_hint("there is nothing that it could hand over: use `close`")
                );
            }
            let counted =
                !lacks(Role::Alloc) && !compile::follows_objects(self.profile, Level::Objects);
            if counted {
                let message =
                    "the objects of a granule that hands them over must be followed by id";
                let hint = "give `object` on the allocs and frees, and no `granule` on the frees";
                return Err(self.at_role(raw, message).with_hint(hint));
            }
        }
        if let Some((_, raw)) = self.having(Role::Move).next()
            && !lacks(Role::Alloc)
        {
            let message = "a granule with objects cannot get another id";
            let hint = "its objects would stay with the old one: leave out the `alloc` probes, or this one";
            return Err(self.at_role(raw, message).with_hint(hint));
        }
        // A free without a granule finds it through its object, which an alloc must have brought.
        let brought = self.having(Role::Alloc).any(|(probe, _)| probe.has(Key::Object));
        match self.having(Role::Free).find(|(probe, _)| !probe.has(Key::Granule)) {
            Some((_, raw)) if !brought => {
                let message =
                    "this free names no `granule`, and no `alloc` probe names an `object`";
                let hint = "give `object` on the allocs, or `granule` here";
                Err(self.at_role(raw, message).with_hint(hint))
            }
            _ => Ok(()),
        }
    }

    /// Granules that begin and end with their objects: nothing else may begin or end them, and every object
    /// must be known.
    fn implicit_fits(&self) -> Verdict {
        let Some(written) = self.implicit.filter(|_| self.profile.implicit) else { return Ok(()) };
        let fail = |message: &str, hint: &str| {
            Err(self.place.fail(written.span().start, message).with_hint(hint))
        };
        if self.profile.kind != Kind::Slab {
            return fail("only granules of kind `slab` can be implicit", "say kind = \"slab\"");
        }
        if self.profile.granule_bytes.is_none() {
            return fail("the size of an implicit granule is not given", "add `bytes` beside it");
        }
        if self.having(Role::Alloc).next().is_none() {
            return fail("implicit granules need `alloc` probes", "their objects begin them");
        }
        for (probe, raw) in self.probes() {
            let of_objects = matches!(probe.role, Role::Alloc | Role::Free | Role::Realloc);
            if !of_objects && probe.role != Role::Init {
                let message = format!(
                    "nothing but objects begins or ends an implicit granule, and \
                     this is a `{}` probe",
                    probe.role.name()
                );
                return Err(self.at_role(raw, message).with_hint("leave one of the two out"));
            }
            if of_objects && !probe.has(Key::Object) {
                let message = "every object of an implicit granule must be known by its id";
                return Err(self.at_role(raw, message).with_hint("add `object`"));
            }
            let allocates = matches!(probe.role, Role::Alloc | Role::Realloc);
            if allocates && (!probe.has(Key::Granule) || !probe.has(Key::Size)) {
                let message = "an object of an implicit granule needs its `granule` and `size`";
                let hint = "what is larger than a granule is counted apart from them";
                return Err(self.at_role(raw, message).with_hint(hint));
            }
        }
        Ok(())
    }

    fn compiles(&self) -> Verdict {
        for level in compile::levels(self.profile) {
            self.compiles_at(level)?;
        }
        Ok(())
    }

    fn compiles_at(&self, level: Level) -> Verdict {
        for (probe, raw) in self.probes().filter(|(probe, _)| compile::wanted(probe, level)) {
            compile(self.profile, probe, level, 0, &Anything).map_err(|error| {
                let at = error.key.and_then(|key| raw.place(key)).unwrap_or(raw.role.span());
                self.place.fail(at.start, error.message)
            })?;
        }
        Ok(())
    }
}

/// `nested` needs parents, and a kind whose closes free what is inside; `at` is where it stands.
pub(super) fn nested_fits(place: Text<'_>, profile: &Profile, at: usize) -> Verdict {
    if profile.kind != Kind::Bulk {
        let message = format!("`nested` on the kind `{}`", profile.kind.name());
        let hint = "only a `bulk` close frees what is inside, nested granules included";
        return Err(place.fail(at, message).with_hint(hint));
    }
    if !profile.probes.iter().any(|probe| probe.role == Role::Open && probe.has(Key::Parent)) {
        let error = place.fail(at, "`nested`, but no `open` probe names a `parent`");
        return Err(error.with_hint("give `parent` on the opens"));
    }
    Ok(())
}

/// Answers for a binary that is not there yet, with numbers that nothing else is equal to: the most
/// constants that the profile can need.
struct Anything;

impl Resolver for Anything {
    fn var(&self, symbol: &str) -> Option<u64> {
        Some(number_for(symbol))
    }

    fn offset_of(&self, type_name: &str, field: &str) -> Result<u64, String> {
        Ok(number_for((type_name, field)))
    }
}

fn number_for(name: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish() | 1 << 63
}

#[cfg(test)]
mod role_tests;
#[cfg(test)]
mod tests;
