# fish completion for softroce
function __softroce_complete
    set -l words (commandline --tokenize --current-process --cut-at-cursor)
    set -l current (commandline --current-token --cut-at-cursor)
    test -n "$current"; or set current ''
    for line in ($words[1] complete -- $words[2..] $current 2>/dev/null)
        switch $line
            case ':files*'
                __fish_complete_path $current
            case ':commands*'
                __fish_complete_command
            case '*'
                echo $line
        end
    end
end
complete --command softroce --no-files --arguments '(__softroce_complete)'
