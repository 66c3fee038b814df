#!/bin/sh
# Prints the JAVA_HOME of a Java that Spark can use (17 or newer). Looks for one, installs one with the system's package
# manager when run as root, or says in a sentence how to get one. Everything but the path goes to standard error.
set -eu

NEEDED=17

version_of() { # the major version of a java program, or 0
    found=$("$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || found=
    echo "${found:-0}"
}

print_home() { # prints the home of a java program, if it is new enough
    [ -x "$1" ] && [ "$(version_of "$1")" -ge "$NEEDED" ] || return 1
    program=$(readlink -f "$1" 2>/dev/null || echo "$1")
    echo "${program%/bin/java}"
}

find_java() {
    print_home "${JAVA_HOME:-/nonexistent}/bin/java" && return
    print_home "$(command -v java || echo /nonexistent)" && return
    if [ -x /usr/libexec/java_home ]; then # macOS
        print_home "$(/usr/libexec/java_home -v "$NEEDED+" 2>/dev/null || echo /nonexistent)/bin/java" && return
    fi
    for program in /usr/lib/jvm/*/bin/java /opt/java/*/bin/java /opt/*/bin/java \
        "$HOME"/.sdkman/candidates/java/*/bin/java /opt/homebrew/opt/openjdk*/bin/java; do
        print_home "$program" && return
    done
    return 1
}

install_java() { # tries one package after the other, until there is a Java that is new enough
    if command -v apt-get; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q
        set -- default-jre-headless openjdk-21-jre-headless openjdk-17-jre-headless
        install='apt-get install -q -y --no-install-recommends'
    elif command -v dnf; then
        set -- java-21-openjdk-headless java-17-openjdk-headless java-latest-openjdk-headless
        install='dnf install -q -y'
    elif command -v apk; then
        set -- openjdk21-jre-headless openjdk17-jre-headless
        install='apk add'
    else
        return 1
    fi
    for package in "$@"; do
        $install "$package" && find_java && return
    done
    return 1
}

find_java && exit
if [ "$(id -u)" = 0 ]; then
    echo "Spark needs Java $NEEDED or newer and there is none: installing it" >&2
    install_java >&2 && find_java && exit
fi
echo "error: Spark needs Java $NEEDED or newer and none was found" >&2
echo "hint: install it (Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless; Fedora: sudo dnf install" \
    "java-21-openjdk-headless; macOS: brew install openjdk@21), or set JAVA_HOME" >&2
exit 1
