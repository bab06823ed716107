# bash completion for softroce
_softroce() {
    local line=${COMP_LINE:0:COMP_POINT} current=${COMP_WORDS[COMP_CWORD]} words value
    read -ra words <<<"$line"
    [[ $line != *[[:space:]] ]] || words+=("")
    # bash also splits words at "=" and ":", and replaces the last part only.
    [[ $current != [=:] ]] || current=
    local typed=${words[-1]%"$current"}
    COMPREPLY=()
    while IFS=$'\t' read -r value _; do
        case $value in
        :files) compopt -o default 2>/dev/null ;;
        :commands) mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -c -- "$current") ;;
        *) COMPREPLY+=("${value#"$typed"}") ;;
        esac
    done < <("${words[0]}" complete -- "${words[@]:1}" 2>/dev/null)
    [[ ${COMPREPLY[0]} != *[=:] ]] || compopt -o nospace 2>/dev/null
}
complete -F _softroce softroce
