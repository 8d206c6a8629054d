//! Where a target listens or where it redirects to: `portals` is a single portal group,
//! `portal_groups` defines several by tag, `redirect` sends initiators elsewhere.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::Range,
};

use engine::zone;
use front_iscsi::{PortalGroup, Redirect};
use serde::Deserialize;
use toml::Spanned;
use volume::config::ConfigError;

use super::{PORT, by_number, wrong_value};

const FORM: &str = "addresses such as [\"127.0.0.1:3260\"] or [\"[::1]:3260\"]";

/// `["10.0.1.1:3260", "[fd00::1]:3260"]`
pub(super) type Addresses = Spanned<Vec<Spanned<String>>>;

/// `{ 1 = ["10.0.1.1:3260"], 2 = ["10.0.2.1:3260"] }`, by tag
pub(super) type Groups = Spanned<BTreeMap<Spanned<String>, Addresses>>;

/// A portal and its location in the configuration; the default portal has none.
type Placed = (SocketAddr, Option<Range<usize>>);

/// The settings of a target that determine its location.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceSettings<'a> {
    pub(super) portals: Option<&'a Addresses>,
    pub(super) portal_groups: Option<&'a Groups>,
    pub(super) redirect: Option<&'a Spanned<RedirectTable>>,
}

/// `{ to = "10.0.2.1:3260", permanent = true }`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RedirectTable {
    to: Spanned<String>,
    #[serde(default)]
    permanent: bool,
}

impl PlaceSettings<'_> {
    /// The portal groups, validated. Their relative target ports come from the state directory.
    pub(super) fn groups(&self) -> Result<Vec<PortalGroup>, ConfigError> {
        let Some(groups) = self.portal_groups else {
            let portals = match self.portals {
                None => vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT))],
                Some(portals) => addresses(portals)?,
            };
            return Ok(vec![PortalGroup::only(portals)]);
        };
        if let Some(portals) = self.portals {
            return Err(wrong_value(
                portals.span(),
                "portals and portal_groups exclude each other",
                "portal_groups = { 1 = [\"10.0.1.1:3260\"], 2 = [\"10.0.2.1:3260\"] } alone",
            ));
        }
        if groups.get_ref().is_empty() {
            return Err(wrong_value(
                groups.span(),
                "a target needs a portal group",
                "portal_groups = { 1 = [\"10.0.1.1:3260\"] }",
            ));
        }
        let number = |tag: &Spanned<String>| {
            let number = tag.get_ref().parse::<u16>().ok().filter(|tag| *tag != 0);
            number.ok_or_else(|| {
                let what = format_args!("\"{}\" is not a portal group tag", tag.get_ref());
                wrong_value(tag.span(), what, "a number from 1 to 65535")
            })
        };
        let group = |(tag, portals): (u16, &Addresses)| {
            Ok(PortalGroup {
                tag,
                portals: addresses(portals)?,
                ..PortalGroup::only(Vec::new())
            })
        };
        let groups = by_number(groups.get_ref(), "portal group", number)?;
        groups.into_iter().map(group).collect()
    }

    /// Everything that is wrong with the portal groups.
    pub(super) fn errors(&self) -> Vec<ConfigError> {
        let groups = self.portal_groups.into_iter();
        let groups = groups.flat_map(|groups| groups.get_ref().values());
        let lists = self.portals.into_iter().chain(groups);
        let portals = lists.flat_map(|portals| portals.get_ref());
        let wrong = portals.filter_map(|portal| portal_at(portal).err());
        // What is wrong with a portal is the first of these, too.
        self.groups().err().into_iter().chain(wrong).collect()
    }

    /// Where initiators are redirected to, if anywhere.
    pub(super) fn redirect(&self) -> Result<Option<Redirect>, ConfigError> {
        let Some(table) = self.redirect else {
            return Ok(None);
        };
        let RedirectTable { to, permanent } = table.get_ref();
        let form = "another portal's address, such as \"10.0.2.1:3260\" or \"[fd00::2]:3260\"";
        let address = address(to.get_ref()).filter(|address| {
            let ip = address.ip();
            !ip.is_unspecified() && !ip.is_multicast() && address.port() != 0
        });
        let address = address.ok_or_else(|| {
            let what = format_args!("cannot redirect initiators to \"{}\"", to.get_ref());
            wrong_value(to.span(), what, form)
        })?;
        if self.groups()?.iter().any(|g| g.portals.contains(&address)) {
            let what = format_args!(
                "\"{}\" is a portal of this target itself: initiators would be redirected in a loop",
                to.get_ref()
            );
            return Err(wrong_value(to.span(), what, form));
        }
        Ok(Some(Redirect {
            to: address,
            permanently: *permanent,
        }))
    }

    /// All portals with their locations in the text; the default has none.
    fn all(&self) -> Result<Vec<Placed>, ConfigError> {
        let groups = self.portal_groups.into_iter();
        let groups = groups.flat_map(|groups| groups.get_ref().values());
        let spans = self.portals.into_iter().chain(groups);
        let spans = spans.flat_map(|portals| portals.get_ref().iter().map(|p| Some(p.span())));
        let portals = self.groups()?.into_iter().flat_map(|group| group.portals);
        Ok(portals.zip(spans.chain(std::iter::repeat(None))).collect())
    }
}

/// Rejects portals that cannot all be bound, or that leave the portal group ambiguous.
pub(super) fn check<'a>(places: impl Iterator<Item = PlaceSettings<'a>>) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    let mut seen: Vec<Placed> = Vec::new();
    // What is wrong with a place alone is said elsewhere.
    for own in places.filter_map(|place| place.all().ok()) {
        for (index, (portal, span)) in own.iter().enumerate() {
            let chosen_by_the_system = portal.port() == 0;
            if own[..index].iter().any(|(other, _)| other == portal) && !chosen_by_the_system {
                let message = format!("\"{portal}\" appears twice; name it once");
                errors.push(ConfigError::new(span.clone(), message));
            }
            let others = seen.iter().chain(&own[..index]);
            for (other, other_span) in others {
                let (wide, narrow) = match (takes(*other, *portal), takes(*portal, *other)) {
                    (true, _) => (other, portal),
                    (_, true) => (portal, other),
                    _ => continue,
                };
                let message = format!(
                    "\"{wide}\" also accepts the connections to \"{narrow}\", and both are portals; \
                     write one of them in both places"
                );
                let place = span.clone().or(other_span.clone());
                errors.push(ConfigError::new(place, message));
                break;
            }
        }
        seen.extend(own);
    }
    errors
}

/// Rejects port 0, with which the system chooses: only a program that starts this one could learn the port.
pub(super) fn check_ports<'a>(places: impl Iterator<Item = PlaceSettings<'a>>) -> Vec<ConfigError> {
    let all = places.filter_map(|place| place.all().ok()).flatten();
    let chosen = all.filter(|(portal, _)| portal.port() == 0);
    let wrong = chosen.map(|(portal, span)| {
        let message = format!(
            "\"{portal}\" has port 0, which initiators could not know; write one, such as \"{}\"",
            with_port(portal, PORT)
        );
        ConfigError::new(span, message)
    });
    wrong.collect()
}

/// The portals of all targets that can be told, each once, with where they are written.
pub(super) fn all<'a>(places: impl Iterator<Item = PlaceSettings<'a>>) -> Vec<Placed> {
    let mut all: Vec<Placed> = Vec::new();
    for placed in places.filter_map(|place| place.all().ok()).flatten() {
        if !all.iter().any(|(portal, _)| *portal == placed.0) {
            all.push(placed);
        }
    }
    all
}

/// Where `portal` is written.
pub(super) fn find<'a>(
    mut places: impl Iterator<Item = PlaceSettings<'a>>,
    portal: SocketAddr,
) -> Option<Range<usize>> {
    places.find_map(|place| {
        let mut all = place.all().ok()?.into_iter();
        all.find(|(own, _)| *own == portal)?.1
    })
}

/// Whether a socket bound to `wide` would accept connections to `narrow`, a different address.
fn takes(wide: SocketAddr, narrow: SocketAddr) -> bool {
    let other = wide != narrow && wide.port() == narrow.port() && wide.port() != 0;
    other
        && match wide.ip() {
            IpAddr::V4(ip) => ip.is_unspecified() && narrow.is_ipv4(),
            // On Linux a socket on [::] accepts both families.
            IpAddr::V6(ip) => ip.is_unspecified(),
        }
}

fn addresses(portals: &Addresses) -> Result<Vec<SocketAddr>, ConfigError> {
    if portals.get_ref().is_empty() {
        return Err(wrong_value(portals.span(), "a target needs a portal", FORM));
    }
    portals.get_ref().iter().map(portal_at).collect()
}

/// The address of a portal.
fn portal_at(portal: &Spanned<String>) -> Result<SocketAddr, ConfigError> {
    let text = portal.get_ref();
    let usable = address(text).filter(|address| match address.ip() {
        IpAddr::V4(ip) => !ip.is_multicast() && !ip.is_broadcast(),
        IpAddr::V6(ip) => !ip.is_multicast(),
    });
    let address = usable.ok_or_else(|| unusable(portal))?;
    let ip = address.ip();
    if !zone::is_needed(ip) || zone::of(address).is_some() {
        return Ok(address);
    }
    Err(wrong_value(
        portal.span(),
        format_args!(
            "\"{text}\" is a link-local address, and every network interface has that network"
        ),
        &format!(
            "the interface with it, such as \"[{ip}%eth0]:{}\"",
            address.port()
        ),
    ))
}

/// What is wrong with a portal that is not an address on which a target can listen.
fn unusable(portal: &Spanned<String>) -> ConfigError {
    let text = portal.get_ref();
    match host_name(text) {
        Some(host) => wrong_value(
            portal.span(),
            format_args!("\"{text}\" is a host name, and a portal is an IP address"),
            &format!("one that `getent hosts {host}` shows, such as \"10.0.1.1:3260\""),
        ),
        None if has_unknown_zone(text) => {
            let what =
                format_args!("\"{text}\" names a network interface that this machine has not");
            wrong_value(
                portal.span(),
                what,
                "one that `ip link` shows, such as \"[fe80::1%eth0]:3260\"",
            )
        }
        None if has_address(text) => {
            let what = format_args!("\"{text}\" has no valid port behind its address");
            wrong_value(portal.span(), what, "one from 1 to 65535, such as 3260")
        }
        None if is_ambiguous(text) => wrong_value(
            portal.span(),
            format_args!("\"{text}\" has no brackets, so its last part may or may not be a port"),
            "an IPv6 address in brackets, such as \"[fd00::1]:3260\"",
        ),
        None => wrong_value(
            portal.span(),
            format_args!("\"{text}\" is not a portal"),
            FORM,
        ),
    }
}

/// The host in `dbhost`, `dbhost:3260` or `dbhost.example.com:3260`.
fn host_name(text: &str) -> Option<&str> {
    let (host, port) = text.split_once(':').unwrap_or((text, "3260"));
    let may_hold = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    let is_host = host.contains(|c: char| c.is_ascii_alphabetic()) && host.chars().all(may_hold);
    (is_host && port.parse::<u16>().is_ok()).then_some(host)
}

/// Whether the text before the last colon is an address.
fn has_address(text: &str) -> bool {
    let parts = text.rsplit_once(':');
    parts.is_some_and(|(ip, port)| address(ip).is_some() && port.parse::<u16>().is_err())
}

/// Whether this is an IPv6 address without brackets whose end looks like a port: `fd00::1:3260`.
fn is_ambiguous(text: &str) -> bool {
    let is_v6 = |text: &str| text.parse::<Ipv6Addr>().is_ok();
    let port = |text: &str| text.len() >= 4 && text.bytes().all(|b| b.is_ascii_digit());
    let parts = text.rsplit_once(':');
    is_v6(text) && parts.is_some_and(|(ip, end)| is_v6(ip) && port(end))
}

/// Whether this would be an address if this machine had the interface that it names.
fn has_unknown_zone(text: &str) -> bool {
    let (plain, zone) = zone::split(text);
    zone.is_some_and(|zone| zone::index(zone).is_none())
        && address(&plain).is_some_and(|address| address.is_ipv6())
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Parses `10.0.1.1:3260`, `10.0.1.1`, `[fd00::1]:3260`, `[fd00::1]`, `fd00::1` or `[fe80::1%eth0]:3260`. An
/// IPv4-mapped IPv6 address is turned into the IPv4 address.
fn address(text: &str) -> Option<SocketAddr> {
    let (text, zone) = zone::split(text);
    let text = &*text;
    let zone = match zone {
        None => None,
        Some(zone) => Some(zone::index(zone)?),
    };
    let whole = text.parse::<SocketAddr>().ok();
    let address = whole.or_else(|| {
        let bracketed = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
        let ip: IpAddr = match bracketed {
            Some(inner) => IpAddr::V6(inner.parse().ok()?),
            None if is_ambiguous(text) => return None,
            None => text.parse().ok()?,
        };
        Some((ip, PORT).into())
    })?;
    match address.ip().to_canonical() {
        IpAddr::V4(_) if zone.is_some() => None,
        IpAddr::V4(ip) => Some((ip, address.port()).into()),
        IpAddr::V6(_) => Some(zone::with(address, zone)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Table {
        portals: Option<Addresses>,
        portal_groups: Option<Groups>,
        redirect: Option<Spanned<RedirectTable>>,
    }

    impl Table {
        fn parse(text: &str) -> Table {
            toml::from_str(text).expect("it parses")
        }

        fn place(&self) -> PlaceSettings<'_> {
            PlaceSettings {
                portals: self.portals.as_ref(),
                portal_groups: self.portal_groups.as_ref(),
                redirect: self.redirect.as_ref(),
            }
        }
    }

    fn told(text: &str) -> Vec<(u16, Vec<String>)> {
        let groups = Table::parse(text).place().groups().expect(text).into_iter();
        groups
            .map(|g| (g.tag, g.portals.iter().map(|p| p.to_string()).collect()))
            .collect()
    }

    #[test]
    fn portals_are_one_group_and_groups_have_their_tags() {
        for (text, tag, portals) in [
            ("", 1, &["0.0.0.0:3260"][..]),
            ("portals = [\"10.0.0.1\"]", 1, &["10.0.0.1:3260"]),
            (
                "portals = [\"::1\", \"[::1]:4\"]",
                1,
                &["[::1]:3260", "[::1]:4"],
            ),
            ("portals = [\"[::ffff:10.0.0.1]:5\"]", 1, &["10.0.0.1:5"]),
            ("portals = [\"[fe80::1%2]:5\"]", 1, &["[fe80::1%2]:5"]),
            ("portals = [\"fe80::1%2\"]", 1, &["[fe80::1%2]:3260"]),
            ("portals = [\"[fe80::1%lo]\"]", 1, &["[fe80::1%1]:3260"]),
            ("portal_groups = { 7 = [\"[::]:3260\"] }", 7, &["[::]:3260"]),
        ] {
            let portals = portals.iter().map(|p| (*p).to_owned()).collect();
            assert_eq!(told(text), [(tag, portals)], "{text}");
        }
        let two = told("portal_groups = { 2 = [\"10.0.0.2\"], 1 = [\"10.0.0.1\"] }");
        assert_eq!(two.len(), 2);
    }

    #[test]
    fn nonsense_is_refused_with_the_value_and_the_mend() {
        for (text, parts) in [
            ("portals = []", &["needs a portal", "127.0.0.1:3260"][..]),
            (
                "portals = [\"localhorst\"]",
                &["\"localhorst\" is a host name", "`getent hosts localhorst`"],
            ),
            (
                "portals = [\"db.example.com:860\"]",
                &["is a host name", "`getent hosts db.example.com`"],
            ),
            (
                "portals = [\"10.0.0.1:99999\"]",
                &["\"10.0.0.1:99999\" has no valid port", "1 to 65535"],
            ),
            ("portals = [\"[::1]:\"]", &["no valid port", "write"]),
            (
                "portals = [\"fd00::1:3260\"]",
                &["no brackets", "[fd00::1]:3260"],
            ),
            ("portals = [\"10.0.0.1]\"]", &["10.0.0.1]", "write"]),
            (
                "portals = [\"[fe80::1]:4\"]",
                &["link-local", "\"[fe80::1%eth0]:4\""],
            ),
            (
                "portals = [\"[fe80::1%no-such-thing]:4\"]",
                &["this machine has not", "ip link", "%eth0"],
            ),
            ("portals = [\"10.0.0.1%lo\"]", &["10.0.0.1%lo", "write"]),
            ("portals = [\"224.0.0.1:3260\"]", &["224.0.0.1", "write"]),
            (
                "portals = [\"10.0.0.1\", \"10.0.0.1:3260\"]",
                &["twice", "10.0.0.1:3260"],
            ),
            (
                "portals = [\"0.0.0.0\", \"10.0.0.1\"]",
                &["\"0.0.0.0:3260\" also accepts", "10.0.0.1:3260"],
            ),
            (
                "portals = [\"0.0.0.0\", \"::\"]",
                &["\"[::]:3260\" also accepts", "0.0.0.0:3260"],
            ),
            ("portal_groups = {}", &["portal_groups = { 1 ="]),
            ("portal_groups = { 1 = [] }", &["needs a portal"]),
            (
                "portal_groups = { 0 = [\"10.0.0.1\"] }",
                &["\"0\"", "1 to 65535"],
            ),
            ("portal_groups = { 65536 = [\"10.0.0.1\"] }", &["\"65536\""]),
            (
                "portals = [\"255.255.255.255\"]",
                &["255.255.255.255", "write"],
            ),
            ("portal_groups = { a = [\"10.0.0.1\"] }", &["\"a\""]),
            (
                "portals = [\"::1\"]\nportal_groups = { 1 = [\"::1\"] }",
                &["portal_groups", "alone"],
            ),
            (
                "portal_groups = { 1 = [\"10.0.0.1\"], 2 = [\"10.0.0.1\"] }",
                &["10.0.0.1:3260", "twice"],
            ),
            (
                "redirect = { to = \"0.0.0.0:3260\" }",
                &["0.0.0.0:3260", "write"],
            ),
            ("redirect = { to = \"elsewhere\" }", &["elsewhere", "write"]),
            (
                "redirect = { to = \"10.0.0.1:0\" }",
                &["10.0.0.1:0", "write"],
            ),
            (
                "portals = [\"::1\"]\nredirect = { to = \"[::1]:3260\" }",
                &["[::1]:3260", "loop"],
            ),
        ] {
            let table = Table::parse(text);
            let place = table.place();
            let errors = [
                place.errors(),
                check([place].into_iter()),
                place.redirect().err().into_iter().collect(),
            ];
            let error = errors.into_iter().flatten().next().expect(text);
            for part in parts {
                assert!(
                    error.message().contains(part),
                    "{text}: {}",
                    error.message()
                );
            }
            assert!(error.span().is_some(), "{text} has a place");
        }
    }

    #[test]
    fn a_port_that_nobody_knows_is_refused_with_one_that_is_known() {
        let table = Table::parse("portals = [\"[::1]:3260\", \"[::1]:0\"]");
        let errors = check_ports([table.place()].into_iter());
        let [error] = &errors[..] else {
            panic!("one has no port: {errors:?}");
        };
        assert!(
            error.message().contains("as \"[::1]:3260\""),
            "{}",
            error.message()
        );
        assert!(error.span().is_some());
        let table = Table::parse("");
        let errors = check_ports([table.place()].into_iter());
        assert_eq!(errors, [], "the default is known");
    }

    #[test]
    fn targets_may_share_a_portal_and_not_overlap() {
        let tables = ["", "portals = [\"10.0.0.1\"]", "portals = [\"0.0.0.0\"]"];
        let tables = tables.map(Table::parse);
        let [everywhere, one, same] = tables.each_ref().map(Table::place);
        assert_eq!(check([everywhere, same].into_iter()), [], "the same portal");
        for pair in [[everywhere, one], [one, everywhere]] {
            let errors = check(pair.into_iter());
            let error = errors.first().expect("they overlap");
            assert!(error.span().is_some() && error.message().contains("10.0.0.1:3260"));
        }
    }
}
