#compdef softroce
# zsh completion for softroce
_softroce() {
    local line value ret=1
    local -a complete incomplete
    for line in "${(@f)$(${words[1]} complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        value=${line%%$'\t'*}
        case $value in
        "") ;;
        :files) _files && ret=0 ;;
        :commands) _command_names -e && ret=0 ;;
        *[=:]) incomplete+=("${value//:/\\:}:${line#*$'\t'}") ;;
        *) complete+=("${value//:/\\:}:${line#*$'\t'}") ;;
        esac
    done
    (( $#complete )) && _describe -t values softroce complete && ret=0
    (( $#incomplete )) && _describe -t values softroce incomplete -S '' && ret=0
    return ret
}
if [[ $funcstack[1] = _softroce ]]; then
    _softroce "$@"
else
    compdef _softroce softroce
fi
